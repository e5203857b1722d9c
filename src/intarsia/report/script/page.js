// What a page does beyond its text: it makes parts live, draws charts, follows the theme, and takes newer sections in.
"use strict";

const Intarsia = (() => {
  const kinds = new Map();
  const states = new Map();

  /** Name a kind of part: init(element, data, state) makes an element with data-part="kind" live. */
  const part = (kind, init) => kinds.set(kind, init);

  /** Return an element; text is always text, never markup. */
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const dataOf = (element) => {
    const holder = element.querySelector(":scope > script[type='application/json']");
    return holder ? JSON.parse(holder.textContent) : null;
  };

  /** Make all parts below an element live. What somebody chose (sorting, a round) outlives a newer section. */
  const start = (root) => {
    for (const element of root.querySelectorAll("[data-part]:not([data-live])")) {
      element.dataset.live = "";
      const key = element.id || `${element.closest("section")?.id}/${element.dataset.part}`;
      if (!states.has(key)) states.set(key, {});
      kinds.get(element.dataset.part)(element, dataOf(element), states.get(key));
    }
  };

  /** Take over the sections of a newer page that are not those that are shown. */
  const update = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const shown = document.querySelector("main");
    const old = new Map([...shown.children].filter((e) => e.id).map((e) => [e.id, e]));
    let place = null;
    for (const next of [...fresh.querySelector("main").children].filter((e) => e.id)) {
      const current = old.get(next.id);
      old.delete(next.id);
      let element = current;
      if (!current || current.dataset.version !== next.dataset.version) {
        element = document.importNode(next, true);
        if (current) current.replaceWith(element);
      }
      const before = place ? place.nextElementSibling : shown.firstElementChild;
      if (element !== before) shown.insertBefore(element, before);
      place = element;
      start(element);
    }
    for (const gone of old.values()) gone.remove();
    document.title = fresh.title;
  };

  return { part, make, start, update };
})();

const Charts = (() => {
  const { make } = Intarsia;
  const figures = new Map();
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Return a colour of the theme: "--series-1", or "--series-1/0.2" where it is to shine through. */
  const colour = (word) => {
    const [name, alpha] = word.split("/");
    const found = variable(name);
    return alpha ? found + Math.round(255 * Number(alpha)).toString(16).padStart(2, "0") : found;
  };

  const MARKUP = new Set(["hovertemplate", "texttemplate"]);

  /** Return names as plotly shows them letter by letter: it takes some markup in them for its own. */
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  const themed = (value, key = "") => {
    if (typeof value === "string") {
      if (value.startsWith("--")) return colour(value);
      return MARKUP.has(key) ? value : plain(value);
    }
    if (Array.isArray(value)) return value.map((own) => themed(own, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, own]) => [name, themed(own, name)]));
    }
    return value;
  };

  const axis = (own = {}) => ({
    automargin: true,
    gridcolor: variable("--rule"),
    zerolinecolor: variable("--rule"),
    linecolor: variable("--rule"),
    ...own,
    title: { text: own.title || "", standoff: 8, font: { size: 13 } },
  });

  const layoutOf = (figure) => ({
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 8, b: 8 },
    showlegend: false,
    hoverlabel: { align: "left", bgcolor: variable("--card"), font: { color: variable("--ink") } },
    font: { family: "system-ui, sans-serif", size: 13, color: variable("--ink") },
    ...themed(figure.layout),
    height: figure.height,
    xaxis: axis(themed(figure.layout.xaxis)),
    yaxis: axis(themed(figure.layout.yaxis)),
  });

  const draw = (element) => {
    const { figure, plot, hidden } = figures.get(element);
    const traces = themed(figure.traces);
    for (const [number, { legendgroup, name }] of figure.traces.entries()) {
      traces[number].visible = !hidden.has(legendgroup || name);
    }
    Plotly.react(plot, traces, layoutOf(figure), CONFIG);
  };

  const swatch = (trace) => {
    const line = trace.line || {};
    const marker = trace.marker || {};
    const mark = make("span", { class: `swatch ${trace.type} ${line.dash || ""}`, "aria-hidden": "true" });
    const word = line.color || (Array.isArray(marker.color) ? marker.color[0] : marker.color) || "--ink";
    mark.style.setProperty("--own", word.startsWith("--") ? `var(${word.split("/")[0]})` : word);
    return mark;
  };

  /** Return the key of a chart: a button a name, which hides and shows what bears it. */
  const keyOf = (element, figure, hidden) => {
    const named = figure.traces.filter((trace) => trace.name && trace.showlegend !== false);
    if (!figure.key || !named.length) return null;
    const key = make("ul", { class: "key" });
    for (const trace of named) {
      const group = trace.legendgroup || trace.name;
      const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(group)) }, swatch(trace), trace.name);
      button.addEventListener("click", () => {
        const on = hidden.delete(group) || !hidden.add(group);
        button.setAttribute("aria-pressed", String(on));
        if (figures.get(element).plot.childElementCount) draw(element);
      });
      key.append(make("li", {}, button));
    }
    return key;
  };

  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        if (figures.has(target)) draw(target);
      }
    },
    { rootMargin: "400px" },
  );

  Intarsia.part("chart", (element, figure, state) => {
    state.hidden ||= new Set();
    const plot = make("div", { class: "plot", role: "img", "aria-label": figure.words });
    plot.style.minHeight = `${figure.height}px`;
    figures.set(element, { figure, plot, hidden: state.hidden });
    const key = keyOf(element, figure, state.hidden);
    if (figure.above) element.append(make("p", { class: "axis-words" }, figure.above));
    element.append(plot);
    if (key) element.append(key);
    seen.observe(element);
  });

  const redraw = () => {
    for (const [element, { plot }] of figures) {
      if (!element.isConnected) figures.delete(element);
      else if (plot.childElementCount) draw(element);
    }
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    for (const element of figures.keys()) if (element.isConnected) draw(element);
  });
  return { redraw, figures };
})();

Intarsia.part("theme", (button) => {
  const order = ["auto", "light", "dark"];
  const kept = () => {
    try {
      return localStorage.getItem("intarsia-theme") || "auto";
    } catch {
      return "auto";
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Colours: ${theme}`;
    Charts.redraw();
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
    try {
      localStorage.setItem("intarsia-theme", next);
    } catch {
      // a browser that keeps nothing: the choice holds as long as the page
    }
    show(next);
  });
  show(kept());
});

document.addEventListener("DOMContentLoaded", () => Intarsia.start(document));
