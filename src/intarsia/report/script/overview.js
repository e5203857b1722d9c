// The overview of `intarsia watch`: all runs, to be sorted, searched, and chosen for a comparison.
"use strict";

/** All runs: a row each, those that go on first. */
Intarsia.part("runs", (element, data) => {
  const { make } = Intarsia;
  const RANK = { running: 0, failed: 1, stopped: 2, finished: 3 };
  const COLUMNS = [
    ["name", "Run", (run) => run.name],
    ["state", "State", (run) => [RANK[run.state], run.state === "running" ? 0 : -run.changed]],
    ["round", "Round", (run) => run.round],
    ["accuracy", "Accuracy", (run) => run.accuracy ?? -1],
    ["bytes", "Sent", (run) => run.bytes ?? 0],
    ["left", "Left", (run) => run.left ?? Infinity],
    ["counted", "Clients", (run) => (run.asked ? run.counted / run.asked : 2)],
    ["trouble", "Trouble", (run) => -Words.trouble(run).length],
  ];
  const runs = new Map(data.runs.map((run) => [run.key, run]));
  const rows = new Map();
  const chosen = new Set();
  const state = { key: "state", up: true, search: "", only: "" };

  const search = make("input", { type: "search", placeholder: "name, method", autocomplete: "off" });
  const chips = make("div", { class: "chips", role: "group", "aria-label": "Which runs are shown" });
  const compare = make("a", { class: "button", role: "link" }, "Compare");
  const told = make("span", { class: "told", role: "status" });
  const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "unseen" }, "Choose")));
  const body = make("tbody");
  const table = make("table", { id: "runs-table", "aria-label": "Runs" }, make("thead", {}, head), body);
  const empty = make("p", {}, "No run yet: one that begins in this folder is shown here by itself.");
  const tools = make("div", { class: "tools" }, make("label", {}, "Search ", search), chips, compare, told);
  const cut = make("p", {}, "There are too many folders: not all of them are looked into. Watch folders further down.");

  const small = (...words) => words.filter(Boolean).map((word) => make("small", {}, word));

  const states = (run) => {
    const when = run.state === "running" ? Words.now(run) : `${Words.ago(run.changed)}${run.why ? `, ${run.why}` : ""}`;
    return [Run.badge(run), ...small(when, run.reading ? "being read" : "")];
  };

  const troubles = (run) => {
    const found = Words.trouble(run);
    const more = found.length > 2 ? `and ${found.length - 2} more` : "";
    return found.length ? small(...found.slice(0, 2), more) : ["none"];
  };

  const CELLS = {
    state: states,
    round: (run) => [Words.rounds(run), Run.bar(run)],
    accuracy: (run) => [Words.score(run), ...Run.spark(run)],
    bytes: (run) => [Words.size(run.bytes)],
    left: (run) => [Run.left(run) || "–"],
    counted: (run) => [run.asked ? `${run.counted} of ${run.asked} counted` : "–", ...small(run.missing?.length ? `without ${Words.some(run.missing, run.asked - run.counted)}` : "")],
    trouble: troubles,
  };

  const rowOf = (run) => {
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(run.key);
      else chosen.delete(run.key);
      offer();
    });
    const name = make("th", { scope: "row" }, make("a", { href: `/run/${run.key}` }, run.name), ...small(`${run.method}${run.seed === null ? "" : `, seed ${run.seed}`}`));
    const tr = make("tr", { "data-run": run.key }, make("td", { class: "choose" }, box), name);
    for (const [key, title] of COLUMNS.slice(1)) tr.append(make("td", { "data-cell": key, "data-title": title }));
    return tr;
  };

  /** Fill a row; the cells alone that say something else than before. */
  const fill = (tr, run) => {
    tr.className = run.state;
    for (const [key, own] of Object.entries(CELLS)) {
      const cell = tr.querySelector(`[data-cell="${key}"]`);
      const next = cell.cloneNode(false);
      next.append(...own(run));
      if (!cell.isEqualNode(next)) cell.replaceWith(next);
    }
  };

  const compared = (a, b) => {
    for (const [at, own] of [a].flat().entries()) {
      const other = [b].flat()[at];
      const order = typeof own === "string" ? own.localeCompare(other, "en", { numeric: true }) : own - other;
      if (order) return order;
    }
    return 0;
  };

  const ordered = () => {
    const [, , value] = COLUMNS.find(([key]) => key === state.key);
    const asked = state.search.trim().toLowerCase();
    const found = [...runs.values()].filter((run) => `${run.name} ${run.method}`.toLowerCase().includes(asked) && (!state.only || run.state === state.only));
    const way = state.up ? 1 : -1;
    return found.sort((a, b) => way * compared(value(a), value(b)) || compared(a.name, b.name));
  };

  const offer = () => {
    const keys = [...chosen].filter((key) => runs.has(key));
    compare.textContent = keys.length > 1 ? `Compare ${keys.length} runs` : "Choose runs to compare";
    const may = keys.length > 1 && keys.length <= data.most;
    if (keys.length > data.most) compare.textContent = `Choose ${data.most} runs at most`;
    compare.toggleAttribute("aria-disabled", !may);
    if (may) compare.href = `/compare?${new URLSearchParams(keys.map((key) => ["run", key]))}`;
    else compare.removeAttribute("href");
  };

  const count = () => {
    const counts = Object.keys(RANK).map((kind) => [kind, [...runs.values()].filter((run) => run.state === kind).length]);
    const made = counts.filter(([kind, n]) => n || state.only === kind).map(([kind, n]) => {
      const chip = make("button", { type: "button", "aria-pressed": String(state.only === kind), "data-state": kind }, `${n} ${kind}`);
      chip.addEventListener("click", () => {
        state.only = state.only === kind ? "" : kind;
        show();
      });
      return chip;
    });
    const had = chips.contains(document.activeElement) ? document.activeElement.dataset.state : "";
    if (chips.textContent === made.map((chip) => chip.textContent).join("") && !had) {
      [...chips.children].forEach((chip, at) => chip.setAttribute("aria-pressed", made[at].getAttribute("aria-pressed")));
      return;
    }
    chips.replaceChildren(...made);
    if (had) chips.querySelector(`[data-state="${had}"]`)?.focus();
  };

  const show = () => {
    const found = ordered();
    for (const th of head.querySelectorAll("[data-key]")) {
      if (th.dataset.key === state.key) th.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    found.forEach((run, at) => {
      if (!rows.has(run.key)) rows.set(run.key, rowOf(run));
      const tr = rows.get(run.key);
      fill(tr, run);
      if (body.children[at] !== tr) body.insertBefore(tr, body.children[at] ?? null);
    });
    while (body.children.length > found.length) body.lastElementChild.remove();
    told.textContent = found.length < runs.size ? `${found.length} of ${runs.size} runs` : "";
    table.hidden = !runs.size;
    empty.hidden = Boolean(runs.size);
    tools.hidden = runs.size < 2;
    count();
    offer();
    const going = [...runs.values()].filter((run) => run.state === "running").length;
    document.title = going ? `${going} running – Runs` : "Runs";
  };

  for (const [key, title] of COLUMNS) {
    const button = make("button", { type: "button", class: "sort" }, title);
    button.addEventListener("click", () => {
      Object.assign(state, { up: state.key === key ? !state.up : key !== "accuracy", key });
      show();
    });
    head.append(make("th", { scope: "col", "data-key": key }, button));
  }
  search.addEventListener("input", () => {
    state.search = search.value;
    show();
  });
  element.append(tools, make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of runs" }, table), empty, ...(data.cut ? [cut] : []));
  show();
  setInterval(show, 10_000);
  Live.listen((news) => {
    if (news.whole) runs.clear();
    for (const run of Object.values(news.runs)) runs.set(run.key, run);
    for (const key of news.gone) {
      runs.delete(key);
      rows.delete(key);
    }
    show();
  });
});
