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
      const section = element.closest("section");
      const alike = section ? [...section.querySelectorAll(`[data-part="${element.dataset.part}"]`)] : [];
      const key = element.id || `${section?.id}/${element.dataset.part}/${alike.indexOf(element)}`;
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
    Contents.renew();
    document.title = fresh.title;
  };

  return { part, make, start, update };
})();

/** Links to the sections, which a newer page may have changed. */
const Contents = (() => {
  const { make } = Intarsia;
  let nav = null;

  const renew = () => {
    if (!nav) return;
    const sections = [...document.querySelectorAll("main > section[id]")].filter((own) => own.querySelector("h2"));
    const links = sections.map((own) => make("a", { href: `#${own.id}` }, own.querySelector("h2").textContent));
    nav.replaceChildren(...links);
  };

  Intarsia.part("contents", (element) => {
    nav = element;
    renew();
  });
  return { renew };
})();

const Charts = (() => {
  const { make } = Intarsia;
  const figures = new Map();
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const byte = (value) => Math.round(value).toString(16).padStart(2, "0");

  /** Return the colours of a ramp of the theme, "--heat", from its low end to its high end. */
  const ramp = (name) => {
    const found = [];
    for (let next; (next = variable(`${name}-${found.length + 1}`)); ) found.push(next);
    return found;
  };

  const between = (stops, place) => {
    const at = Math.min(place * (stops.length - 1), stops.length - 1.001);
    const [low, high] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]].map((hex) =>
      [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)),
    );
    return "#" + low.map((value, i) => byte(value + (high[i] - value) * (at % 1))).join("");
  };

  /** Return a colour of the theme: "--series-1"; "--series-1/0.2" shines through; "--labels@0.3" is a place on a ramp. */
  const colour = (word) => {
    const [name, alpha] = word.split("/");
    const [base, place] = name.split("@");
    const found = place === undefined ? variable(base) : between(ramp(base), Number(place));
    return alpha ? found + byte(255 * Number(alpha)) : found;
  };

  /** Return a colour of the theme as CSS, which follows the theme by itself. */
  const styled = (word) => {
    if (!word.startsWith("--")) return word;
    const [base, place] = word.split("/")[0].split("@");
    if (place === undefined) return `var(${base})`;
    const last = ramp(base).length - 1;
    const at = Math.min(Number(place) * last, last - 0.001);
    const low = Math.floor(at) + 1;
    return `color-mix(in srgb, var(${base}-${low + 1}) ${(100 * (at % 1)).toFixed(1)}%, var(${base}-${low}))`;
  };

  const MARKUP = new Set(["hovertemplate", "texttemplate"]);
  const COLOURED = new Set(["color", "fillcolor", "fgcolor"]);

  /** Return names as plotly shows them letter by letter: it takes some markup in them for its own. */
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  const themed = (value, key = "") => {
    if (typeof value === "string") {
      if (key === "colorscale" && value.startsWith("--")) {
        return ramp(value).map((own, i, all) => [i / (all.length - 1), own]);
      }
      if (COLOURED.has(key) && value.startsWith("--")) return colour(value);
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

  const LETTER = 0.55;

  /** Return what is written along an axis of names: short ones, and no more than there is room for. */
  const namesAlong = (figure, way, room) => {
    if (figure.layout[`${way}axis`]?.type !== "category") return {};
    const all = figure.traces.flatMap((trace) => (trace.type === "box" ? [trace.name] : trace[way] ?? []));
    const names = [...new Set(all.map(String))];
    const most = way === "x" ? 16 : Math.max(10, Math.floor((0.4 * room) / (LETTER * (figure.layout.yaxis.tickfont?.size ?? 13))));
    const step = way === "x" ? Math.ceil((names.length * 15) / Math.max(room - 60, 60)) : Math.ceil((names.length * 11) / figure.height);
    if (step === 1 && names.every((name) => name.length <= most)) return {};
    const shown = names.map((_, at) => at).filter((at) => at % step === 0);
    const short = (name) => plain(name.length <= most ? name : `${name.slice(0, most - 1)}…`);
    return { tickmode: "array", tickvals: shown, ticktext: shown.map((at) => short(names[at])) };
  };

  const layoutOf = (figure, room) => ({
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 8, b: 8 },
    showlegend: false,
    hoverlabel: { align: "left", bgcolor: variable("--card"), font: { color: variable("--ink") } },
    font: { family: "system-ui, sans-serif", size: 13, color: variable("--ink") },
    ...themed(figure.layout),
    height: figure.height,
    xaxis: { ...axis(themed(figure.layout.xaxis)), ...namesAlong(figure, "x", room) },
    yaxis: { ...axis(themed(figure.layout.yaxis)), ...namesAlong(figure, "y", room) },
  });

  const groupOf = (trace) => trace.legendgroup || trace.name;

  const isShown = ({ hidden, raised, bands }, trace) => {
    const { fold, band } = trace.meta || {};
    const up = raised.has(groupOf(trace));
    if (hidden.has(groupOf(trace))) return false;
    return !band || (bands[band] && (!fold || up));
  };

  /** Return what is drawn: what is folded and was not asked for is thin and grey. */
  const tracesOf = (figure, state) =>
    figure.traces.map((trace) => {
      const visible = isShown(state, trace);
      if (trace.meta?.fold !== "grey" || state.raised.has(groupOf(trace))) return themed({ ...trace, visible });
      return themed({ ...trace, visible, mode: "lines", line: { color: "--faint/0.35", width: 1 } });
    });

  const draw = (element) => {
    const { figure, plot, state } = figures.get(element);
    const room = plot.clientWidth;
    const paper = "paper" in document.documentElement.dataset;
    const layout = { ...layoutOf(figure, room), ...(paper ? { width: room } : { autosize: true }) };
    Plotly.react(plot, tracesOf(figure, state), layout, CONFIG);
  };

  const DASHES = { dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 3" };
  const MARKS = {
    circle: "M14 6m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
    square: "M11 3h6v6h-6z",
    diamond: "M14 2l4 4l-4 4l-4 -4z",
    "triangle-up": "M14 2l4 7h-8z",
    x: "M11 3l6 6m0 -6l-6 6",
  };

  const HATCHES = { "/": "M0 12L12 0M-2 6L6 -2M6 14L14 6", x: "M0 12L12 0M0 0L12 12", ".": "M3 3h1M8 8h1M8 3h1M3 8h1" };

  const drawing = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  /** Return a trace in little, for the key. */
  const swatch = (trace) => {
    const { line = {}, marker = {} } = trace;
    const word = line.color || (Array.isArray(marker.color) ? marker.color[0] : marker.color) || "--ink";
    const parts = trace.type === "scatter" ? [] : [drawing("path", { d: "M1 1h10v10h-10z" })];
    if (/lines/.test(trace.mode)) {
      parts.push(drawing("path", { class: "line", d: "M0 6h28", "stroke-dasharray": DASHES[line.dash] || "none" }));
    }
    if (/markers/.test(trace.mode)) {
      const edge = marker.line?.width ? { class: "edged" } : {};
      parts.push(drawing("path", { d: MARKS[marker.symbol] || MARKS.circle, "stroke-width": "1", ...edge }));
    }
    if (trace.mode === "text") parts.push(drawing("text", { x: 14, y: 10, "text-anchor": "middle" }, trace.text[0] ?? ""));
    if (marker.pattern?.shape) parts.push(drawing("path", { class: "pattern", d: HATCHES[marker.pattern.shape] }));
    const block = trace.type !== "scatter";
    const own = { class: block ? "swatch block" : "swatch", viewBox: block ? "0 0 12 12" : "0 0 28 12", "aria-hidden": "true" };
    const mark = drawing("svg", own, ...parts);
    mark.style.setProperty("--own", styled(word));
    return mark;
  };

  /** Return a button that switches something of a chart on and off. */
  const toggle = (element, on, change, ...content) => {
    const button = make("button", { type: "button", "aria-pressed": String(on) }, ...content);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(change()));
      if (figures.get(element).plot.childElementCount) draw(element);
    });
    return make("li", {}, button);
  };

  const flip = (set, value) => !set.delete(value) && Boolean(set.add(value));

  /** Return the key of a chart: a button a name, which hides and shows what bears it; what is folded is in a list. */
  const keyOf = (element, figure, state) => {
    const named = figure.traces.filter((trace) => trace.name && trace.showlegend !== false);
    if (!figure.key || (named.length < 2 && !Object.keys(figure.bands ?? {}).length)) return [];
    const [shown, folded] = [named.filter((t) => !t.meta?.fold), named.filter((t) => t.meta?.fold)];
    const key = make("ul", { class: "key" });
    for (const trace of shown) {
      const group = groupOf(trace);
      key.append(toggle(element, !state.hidden.has(group), () => !flip(state.hidden, group), swatch(trace), trace.name));
    }
    for (const band of Object.keys(figure.bands ?? {})) {
      const item = toggle(element, state.bands[band], () => (state.bands[band] = !state.bands[band]), band);
      item.firstChild.classList.add("switch");
      key.append(item);
    }
    return folded.length ? [key, foldedKey(element, folded, state)] : [key];
  };

  const foldedKey = (element, folded, state) => {
    const list = make("ul", { class: "key" });
    for (const trace of folded) {
      const group = groupOf(trace);
      list.append(toggle(element, state.raised.has(group), () => flip(state.raised, group), swatch(trace), trace.name));
    }
    const details = make("details", { class: "folded" }, make("summary", {}, `${folded.length} more, drawn in grey`), list);
    details.open = Boolean(state.open);
    details.addEventListener("toggle", () => (state.open = details.open));
    return details;
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
    state.raised ||= new Set();
    state.bands ||= { ...figure.bands };
    const plot = make("div", { class: "plot", role: "img", "aria-label": figure.words });
    plot.style.minHeight = `${figure.height}px`;
    figures.set(element, { figure, plot, state });
    if (figure.above) element.append(make("p", { class: "axis-words" }, figure.above));
    element.append(plot, ...keyOf(element, figure, state));
    seen.observe(element);
  });

  const redraw = () => {
    for (const [element, { plot }] of figures) {
      if (!element.isConnected) figures.delete(element);
      else if (plot.childElementCount) draw(element);
    }
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  /** Lay the page out for paper: light, as wide as a sheet, all charts drawn, all that is folded open. */
  const forPaper = () => {
    const root = document.documentElement;
    root.dataset.printed = root.dataset.theme;
    root.dataset.theme = "light";
    root.dataset.paper = "";
    for (const closed of document.querySelectorAll("details:not([open])")) {
      closed.open = true;
      closed.dataset.closed = "";
    }
    for (const element of figures.keys()) if (element.isConnected) draw(element);
  };

  const forScreen = () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.printed;
    delete root.dataset.paper;
    for (const opened of document.querySelectorAll("details[data-closed]")) {
      opened.open = false;
      delete opened.dataset.closed;
    }
    redraw();
  };

  window.addEventListener("beforeprint", forPaper);
  window.addEventListener("afterprint", forScreen);
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
