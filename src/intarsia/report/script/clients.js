// The table of clients: worst first, sorted and searched as its reader likes; rows are made when they are shown.
"use strict";

const Clients = (() => {
  const { make } = Intarsia;
  const { chosen, count, picker } = Drawing;
  const ROWS = 20;
  const signed = (text, value) => (value > 0 ? `+${text}` : text.replace("-", "−"));
  const FORMS = {
    share: (value) => `${(100 * value).toFixed(1)} %`,
    points: (value) => signed((100 * value).toFixed(1), value),
    step: (value) => signed(String(Number(value.toPrecision(3))), value),
    number: (value) => String(Number(value.toPrecision(3))),
    count: (value) => value.toLocaleString("en"),
  };
  const known = new Map();

  const written = (column, value) => (value === null || value === undefined ? "–" : FORMS[column.form](value));

  /** Return the attributes of a client, such as its device and cohort. */
  const attributes = (run, place) => run.about.map(({ words, of }) => words[of[place]]).filter(Boolean);

  /** Return how many blocks a client has, how many of them it shares, and with how many others. */
  const shared = (run) => {
    if (!run.ways) return null;
    const members = run.held.map(() => []);
    run.way.forEach((way, place) => run.ways[way][0].forEach((own) => members[run.kin[own]].push(place)));
    const ofWay = run.ways.map(([held]) => {
      const used = held.filter((own) => run.held[own][2] !== 3);
      const common = used.filter((own) => run.held[own][2] > 3);
      return { blocks: used.length, common: common.length, others: new Set(common.flatMap((own) => members[run.kin[own]])).size };
    });
    return run.way.map((way) => {
      const { blocks, common, others } = ofWay[way];
      return { blocks, common, others: Math.max(0, others - 1) };
    });
  };

  /** Return for everything that clients hold the first that is the same block of the same group. */
  const kinOf = (held) => {
    const first = new Map();
    return held.map(([block, group, colour], number) => {
      const key = JSON.stringify([block, group, colour]);
      if (!first.has(key)) first.set(key, number);
      return first.get(key);
    });
  };

  const sharedColumn = (run) => {
    const own = shared(run);
    if (!own) return [];
    const text = ({ blocks, common, others }) =>
      common ? `${common} of ${blocks}, with ${others.toLocaleString("en")}` : `none of ${blocks}`;
    const values = own.map(({ common, others }) => common + others / 1e6);
    return [{ key: "shared", title: "Shared blocks", values, texts: own.map(text), more: true, shown: true }];
  };

  /** Make what the data does not have to carry: the columns of the table, and what is searched. */
  const prepared = (data) => {
    const run = { ...data, kin: kinOf(data.held ?? []) };
    const columns = run.columns.filter(({ shown }) => shown);
    columns.splice(columns.findIndex(({ key }) => key === "failures"), 0, ...sharedColumn(run));
    const texts = run.names.map((name, place) => [name, ...attributes(run, place)].join(" ").toLowerCase());
    return { ...run, table: columns, texts };
  };

  const leading = (run) => run.table.find(({ key }) => ["accuracy", "rmse", "loss"].includes(key))?.key ?? "";

  /** Return places in the order that is asked for; what has no value comes last. */
  const sorted = (run, { key, up }) => {
    const column = run.table.find((own) => own.key === key);
    const places = run.names.map((_, place) => place);
    if (key === "client") {
      places.sort((a, b) => run.names[a].localeCompare(run.names[b], "en", { numeric: true }));
      return up ? places : places.reverse();
    }
    if (!column) return places;
    const absent = (place) => column.values[place] === null;
    const sign = up ? 1 : -1;
    return places.sort((a, b) => absent(a) - absent(b) || sign * (column.values[a] - column.values[b]) || a - b);
  };

  const cell = (column, place) => {
    const value = column.values[place];
    const text = column.texts ? column.texts[place] : written(column, value);
    const td = make("td", {}, text);
    if (/^gain/.test(column.key) && value < 0) td.className = "loses";
    if (column.key === "failures" && value) td.className = "loses";
    if (column.form === "share" && value !== null) {
      td.className = "bar";
      td.style.setProperty("--share", `${100 * value}%`);
    }
    return td;
  };

  const row = (run, place) => {
    const name = run.names[place];
    const button = make("button", { type: "button", class: "link", "aria-haspopup": "dialog" }, name);
    const about = attributes(run, place).join(", ");
    const head = make("th", { scope: "row" }, button, ...(about ? [make("small", {}, about)] : []));
    const tr = make("tr", { "data-client": name, tabindex: "-1" }, head);
    tr.append(...run.table.map((column) => cell(column, place)));
    return tr;
  };

  const words = (run) => {
    const told = [];
    if (!run.judged) told.push("The run has not been judged yet: accuracy and loss of its last evaluation are shown.");
    if (!run.beside) {
      told.push("What clients gain over training alone is not known: compare with a run of the method local, or set evaluation.baseline to local.");
    }
    return told.join(" ");
  };

  const show = (element, runs, state) => {
    const run = chosen(runs, state.run);
    state.run = run.label;
    state.sort ??= { key: leading(run), up: run.table.find(({ key }) => key === leading(run))?.more ?? true };
    const search = make("input", { type: "search", placeholder: "name, device, cohort", autocomplete: "off" });
    search.value = state.search ?? "";
    const told = make("span", { class: "told", role: "status" });
    const choice = picker(runs, run.label, (label) => {
      Object.assign(state, { run: label, sort: undefined, page: 0 });
      show(element, runs, state);
      element.querySelector("select").focus();
    });
    const tools = make("div", { class: "tools" }, ...choice, make("label", {}, "Search ", search), told);
    const head = make("tr");
    const body = make("tbody");
    const table = make("table", { id: "clients-table", "aria-label": `Clients of ${run.label}` }, make("thead", {}, head), body);
    const pager = make("nav", { class: "pager", "aria-label": "Pages of the table of clients" });
    const wide = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of clients" }, table);
    element.querySelector(":scope > .made")?.remove();
    element.append(make("div", { class: "made" }, tools, wide, pager, make("p", { class: "note" }, words(run))));
    const view = { run, state, head, body, pager, told, search };
    heads(view);
    listen(view);
    fill(view);
    keepFocus(element, state);
  };

  /** Give the focus back where a newer table took the place of the one that had it. */
  const keepFocus = (element, state) => {
    const named = (key) => (key === "search" ? element.querySelector("input") : element.querySelector(`th[data-key="${key}"] button`));
    if (state.focus) named(state.focus)?.focus();
    element.addEventListener("focusin", ({ target }) => {
      state.focus = target.matches("input") ? "search" : target.closest("th[data-key]")?.dataset.key;
    });
    element.addEventListener("focusout", () => setTimeout(() => element.isConnected && (state.focus = undefined)));
  };

  const heads = (view) => {
    const { run, state, head } = view;
    for (const { key, title, more } of [{ key: "client", title: "Client", more: true }, ...run.table]) {
      const button = make("button", { type: "button", class: "sort" }, title);
      const th = make("th", { scope: "col", "data-key": key }, button);
      const first = ["samples", "shared"].includes(key) ? !more : more;
      button.addEventListener("click", () => {
        state.sort = { key, up: state.sort.key === key ? !state.sort.up : first };
        state.page = 0;
        fill(view);
      });
      head.append(th);
    }
  };

  const listen = (view) => {
    const { state, body, search, run } = view;
    search.addEventListener("input", () => {
      Object.assign(state, { search: search.value, page: 0 });
      fill(view);
    });
    const opened = (event) => {
      const name = event.target.closest("tr[data-client]")?.dataset.client;
      if (name !== undefined) ClientView.open(run, run.names.indexOf(name));
    };
    body.addEventListener("click", opened);
    body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("tr")) opened(event);
    });
  };

  const fill = (view) => {
    const { run, state, head, body, pager, told } = view;
    const asked = (state.search ?? "").trim().toLowerCase();
    const found = sorted(run, state.sort).filter((place) => run.texts[place].includes(asked));
    const last = Math.max(0, Math.ceil(found.length / ROWS) - 1);
    state.page = Math.min(state.page ?? 0, last);
    const start = state.page * ROWS;
    body.replaceChildren(...found.slice(start, start + ROWS).map((place) => row(run, place)));
    for (const th of head.children) {
      const mine = th.dataset.key === state.sort.key;
      if (mine) th.setAttribute("aria-sort", state.sort.up ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    told.textContent = asked ? `${count(found.length, "client")} of ${run.names.length.toLocaleString("en")}` : count(found.length, "client");
    turn(view, last, `${start + 1} to ${Math.min(start + ROWS, found.length)} of ${found.length.toLocaleString("en")}`);
    pager.hidden = last === 0;
  };

  /** Make the buttons that turn the pages; the one that was pressed keeps the focus. */
  const turn = (view, last, text) => {
    const { state, pager } = view;
    const had = pager.contains(document.activeElement) ? document.activeElement.dataset.step : "";
    const button = (step, title) => {
      const own = make("button", { type: "button", "data-step": step }, title);
      own.disabled = step < 0 ? state.page === 0 : state.page === last;
      own.addEventListener("click", () => {
        state.page += step;
        fill(view);
      });
      return own;
    };
    pager.replaceChildren(button(-1, "Previous"), make("span", {}, text), button(1, "Next"));
    if (had) (pager.querySelector(`[data-step="${had}"]:enabled`) ?? pager.querySelector("button:enabled"))?.focus();
  };

  Intarsia.part("clients", (element, data, state) => {
    const runs = data.map(prepared);
    known.clear();
    for (const run of runs) known.set(run.label, run);
    show(element, runs, state);
    ClientView.renew(known);
  });

  /** Return the button of a client in the table, where it is shown. */
  const buttonOf = (name) =>
    [...document.querySelectorAll("#clients-table tr[data-client]")].find((tr) => tr.dataset.client === name)?.querySelector("button");

  return { known, attributes, written, buttonOf };
})();
