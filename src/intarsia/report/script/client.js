// A client that was opened: its figures, its model as a graph, what the model said, and its course over rounds.
"use strict";

const ClientView = (() => {
  const { make } = Intarsia;
  const { count, short } = Drawing;
  const MOST_LABELS = 30;
  const NAMED = 6;
  let dialog = null;
  let shown = null;

  const frame = () => {
    if (dialog) return dialog;
    const close = make("button", { type: "button", class: "close" }, "Close");
    dialog = make("dialog", { class: "client", "aria-labelledby": "client-name" }, close, make("div", { class: "content" }));
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => {
      const { name, opener } = shown;
      shown = null;
      const back = opener?.isConnected ? opener : Clients.buttonOf(name) ?? document.querySelector("#clients input[type=search]");
      back?.focus();
    });
    document.body.append(dialog);
    return dialog;
  };

  /** Open a client of a run, by its place there. Whoever opened it has the focus again when it is closed. */
  const open = (run, place) => {
    const own = frame();
    const opener = document.activeElement === document.body ? null : document.activeElement;
    shown = { label: run.label, name: run.names[place], opener };
    if (!own.open) own.showModal();
    fill(run, place);
    own.scrollTop = 0;
  };

  /** Show what is newer of the client that is open. */
  const renew = (runs) => {
    const run = shown && runs.get(shown.label);
    const place = run ? run.names.indexOf(shown.name) : -1;
    if (place >= 0) fill(run, place);
  };

  const fill = (run, place) => {
    const about = run.about.map(({ title, words, of }) => [title, words[of[place]]]).filter(([, word]) => word);
    const heading = make("h2", { id: "client-name" }, run.names[place]);
    const lead = make("p", { class: "lead" }, [run.label, ...about.map(([title, word]) => (word.startsWith(title) ? word : `${title} ${word}`))].join(" · "));
    const content = make("div", { class: "content" }, heading, lead, facts(run, place));
    dialog.querySelector(".content").replaceWith(content);
    const parts = [
      ["What its model is made of", model(run, place, content.clientWidth)],
      ["What it learned from last", teacher(run, place)],
      ["What its model said", confusion(run, place)],
      ["Its course over the rounds", course(run, place)],
      ["What failed", failures(run, place)],
    ];
    for (const [title, nodes] of parts.filter(([, own]) => own.length)) {
      content.append(make("section", {}, make("h3", {}, title), ...nodes));
    }
    Intarsia.start(content);
  };

  const facts = (run, place) => {
    const list = make("dl", { class: "facts" });
    for (const column of run.columns) {
      if (column.values[place] === null) continue;
      list.append(make("div", {}, make("dt", {}, column.title), make("dd", {}, Clients.written(column, column.values[place]))));
    }
    return list;
  };

  /** Return what a client holds, in the order of its model: name, group, colour, size and who else has it. */
  const blocksOf = (run, place) => {
    const [held, links] = run.ways[run.way[place]];
    const others = new Map(held.map((own) => [run.kin[own], []]));
    run.way.forEach((way, who) => {
      if (who === place) return;
      for (const own of run.ways[way][0]) if (run.held[own][2] > 3) others.get(run.kin[own])?.push(who);
    });
    const blocks = held.map((own) => {
      const [name, , colour, size] = run.held[own];
      return { name, colour, size, others: others.get(run.kin[own]).map((who) => run.names[who]) };
    });
    return { blocks, links };
  };

  const model = (run, place, width) => {
    if (!run.ways) return [make("p", {}, "The run folder does not tell what the models are made of.")];
    const { blocks, links } = blocksOf(run, place);
    const list = make("ul", { class: "sharing" });
    for (const { name, colour, size, others } of blocks) {
      const some = others.slice(0, NAMED).join(", ") + (others.length > NAMED ? ` and ${others.length - NAMED} more` : "");
      const text = Tiles.sharing(run.groups, colour, others.length) + (some ? ` (${some})` : "");
      list.append(make("li", {}, Tiles.swatch(colour), make("span", {}, make("b", {}, name), size ? ` ${size}` : "", ` – ${text}`)));
    }
    const words = `The blocks of ${run.names[place]}'s model in their order`;
    return [make("div", { class: "made-of" }, Graph.draw(blocks, links, width, words), list)];
  };

  const teacher = (run, place) => {
    const chain = run.teachers[place];
    if (!chain) return [];
    const donors = [...new Set(chain.map(([donor]) => donor))];
    const named = (donor) => (typeof donor === "number" ? run.names[donor] : donor);
    const list = make("ol", { class: "chain" });
    for (const [donor, block] of chain) {
      const own = donor === place;
      const mark = Tiles.swatch(own ? 1 : 5 + donors.indexOf(donor));
      list.append(make("li", {}, mark, make("span", {}, `${own ? "its own" : named(donor)}, block ${block}`)));
    }
    return [make("p", {}, "A model that the server put together of clients' blocks, from the first to the last:"), list];
  };

  const confusion = (run, place) => {
    const flat = run.confusion[place];
    if (!flat) {
      const errors = run.errors.includes(place);
      const why = errors
        ? "Its task is to predict numbers: the figures above say how far off it is."
        : run.judged
          ? "The page has no room for the counts of all clients: sorted by their figures, the worst have theirs. In Python, run.client(name).judged() has all."
          : "What models say is counted after the last round, where evaluation.metrics are asked for.";
      return [make("p", {}, why)];
    }
    const entries = [];
    for (let i = 0; i < flat.length; i += 3) entries.push(flat.slice(i, i + 3));
    const task = run.about.find(({ title }) => title === "task");
    const words = run.labels[task ? task.words[task.of[place]] : ""] ?? Object.values(run.labels)[0] ?? [];
    const word = (label) => words[label] ?? String(label);
    const labels = [...new Set(entries.flatMap(([true_, said]) => [true_, said]))].sort((a, b) => a - b);
    return labels.length > MOST_LABELS ? mistakes(entries, word) : matrix(entries, labels, word);
  };

  const matrix = (entries, labels, word) => {
    const counts = new Map(entries.map(([label, said, n]) => [`${label} ${said}`, n]));
    const head = make("tr", {}, make("th", { scope: "col" }, "true \\ said"));
    for (const label of labels) head.append(make("th", { scope: "col", title: word(label) }, short(word(label), 12)));
    const body = make("tbody");
    for (const label of labels) {
      const own = labels.map((said) => counts.get(`${label} ${said}`) ?? 0);
      const all = own.reduce((a, b) => a + b, 0);
      const tr = make("tr", {}, make("th", { scope: "row", title: word(label) }, short(word(label), 18)));
      own.forEach((n, said) => tr.append(counted(n, all, labels[said] === label)));
      body.append(tr);
    }
    const table = make("table", { class: "confusion" }, make("thead", {}, head), body);
    const told = "How many of its test samples of a label (rows) got which label (columns).";
    return [make("p", {}, told), make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "What its model said" }, table)];
  };

  const counted = (n, all, right) => {
    const td = make("td", { class: right ? "right" : "wrong" }, n ? String(n) : "·");
    td.style.setProperty("--share", `${n ? 12 + (50 * n) / all : 0}%`);
    return td;
  };

  const mistakes = (entries, word) => {
    const right = entries.filter(([label, said]) => label === said).reduce((sum, [, , n]) => sum + n, 0);
    const all = entries.reduce((sum, [, , n]) => sum + n, 0);
    const wrong = entries.filter(([label, said]) => label !== said).sort((a, b) => b[2] - a[2]);
    const list = make("ul", {}, ...wrong.slice(0, 15).map(([label, said, n]) => make("li", {}, `${word(label)} taken for ${word(said)}: ${n}`)));
    const more = wrong.length > 15 ? " The most frequent mistakes:" : "";
    return [make("p", {}, `${right} of ${count(all, "test sample")} right.${more}`), list];
  };

  const course = (run, place) => {
    const own = run.history[place] ?? [];
    const lost = new Set(run.errors);
    const scale = lost.has(place) ? 1 : 1000;
    const peers = run.history.filter((_, who) => lost.has(who) === lost.has(place));
    if (!own.some((value) => value !== null)) return [make("p", {}, "It has not been evaluated yet.")];
    const mean = run.rounds.map((_, at) => {
      const there = peers.map((values) => values[at]).filter((value) => value !== null);
      return there.length ? there.reduce((a, b) => a + b, 0) / there.length / scale : null;
    });
    const mode = run.rounds.length > 1 ? "lines" : "markers";
    const line = (name, y, look) => ({ type: "scatter", name, x: run.rounds, y, mode, line: look, connectgaps: true });
    const what = lost.has(place) ? "loss" : "accuracy";
    const figure = {
      traces: [
        line("mean of all clients", mean, { color: "--faint", dash: "dot", width: 1.5 }),
        line(run.names[place], own.map((value) => (value === null ? null : value / scale)), { color: "--series-1", width: 2.5 }),
      ],
      layout: {
        xaxis: { title: "round", tickformat: "d", rangemode: "nonnegative", ...(run.rounds.at(-1) <= 12 ? { dtick: 1 } : {}) },
        yaxis: lost.has(place) ? {} : { tickformat: ".0%" },
      },
      height: 260,
      above: `${what} of its own model on its own test data`,
      key: true,
      words: `${what} by round of ${run.names[place]}, and the mean of all clients`,
    };
    const holder = make("script", { type: "application/json" });
    holder.textContent = JSON.stringify(figure);
    return [make("div", { class: "chart", "data-part": "chart", id: "client-course" }, holder)];
  };

  const failures = (run, place) => {
    const told = run.failures[place] ?? [];
    if (!told.length) return [];
    return [make("ul", {}, ...told.map(([round, kind, message]) => make("li", {}, `Round ${round}, ${kind}: ${message}`)))];
  };

  return { open, renew };
})();

/** A model as a graph: blocks from top to bottom, in the colours of those who share them. */
const Graph = (() => {
  const { shape, short } = Drawing;
  const HEIGHT = 40;
  const GAP = 26;
  const MOST = 16;

  /** Make neighbours that are shared alike one, where a chain is long. */
  const folded = (blocks) => {
    const found = [];
    for (const block of blocks) {
      const before = found.at(-1);
      if (before && before.colour === block.colour) before.names.push(block.name);
      else found.push({ ...block, names: [block.name] });
    }
    return found.map(({ names, ...own }) =>
      names.length < 2 ? own : { ...own, name: `${names[0]} to ${names.at(-1)}`, size: `${names.length} blocks` },
    );
  };

  /** Return the row of every block: behind all that lead to it; what nothing leads to or from is left at the side. */
  const rows = (blocks, links) => {
    const depth = blocks.map(() => 0);
    for (let again = true, left = blocks.length; again && left; left -= 1) {
      again = false;
      for (let i = 0; i < links.length; i += 2) {
        const [start, end] = [links[i], links[i + 1]];
        if (end >= 0 && depth[end] <= depth[start]) {
          depth[end] = depth[start] + 1;
          again = true;
        }
      }
    }
    const used = new Set(links.filter((place) => place >= 0));
    const found = [];
    blocks.forEach((block, place) => {
      if (used.has(place)) (found[depth[place]] ??= []).push(place);
    });
    return found.filter(Boolean);
  };

  const chained = (blocks) => blocks.flatMap((_, place) => (place ? [place - 1, place] : []));

  const box = (block, x, y, width) => {
    const { variable, hatch } = Tiles.look(block.colour);
    const rect = { x, y, width, height: HEIGHT, rx: 7, class: `box ${hatch}` };
    const fill = variable ? { style: `fill: var(${variable})` } : {};
    const group = shape("g", { class: variable ? "filled" : "open" }, shape("rect", { ...rect, ...fill }));
    if (hatch) group.append(shape("rect", { ...rect, class: "hatch", fill: `url(#hatch-${hatch})` }));
    const most = Math.floor((width - 12) / 7.5);
    const middle = { x: x + width / 2, "text-anchor": "middle" };
    group.append(shape("title", {}, block.name));
    group.append(shape("text", { ...middle, y: y + (block.size ? 17 : 25), class: "name" }, short(block.name, most)));
    if (block.size) group.append(shape("text", { ...middle, y: y + 32, class: "size" }, short(block.size, most)));
    return group;
  };

  const PATTERNS = {
    own: "M-2 2l4 -4M0 8l8 -8M6 10l4 -4",
    alone: "M3 4h2",
    out: "",
    striped: "M-2 6l4 4M0 0l8 8M6 -2l4 4",
    dotted: "M3 4h2",
  };
  const patterns = () =>
    shape(
      "defs",
      {},
      ...Object.entries(PATTERNS).map(([name, d]) =>
        shape("pattern", { id: `hatch-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, shape("path", { d, class: "stroke" })),
      ),
    );

  const curve = ([x1, y1], [x2, y2]) => {
    const bend = (y2 - y1) / 2;
    return shape("path", { class: "link", d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` });
  };

  const draw = (given, links, width, words) => {
    const used = given.filter(({ colour }) => colour !== 3);
    const blocks = links.length ? given : used.length > MOST ? folded(used) : used;
    const joined = links.length ? links : chained(blocks);
    const laid = links.length ? rows(blocks, joined) : blocks.map((_, place) => [place]);
    const widest = Math.max(1, ...laid.map((own) => own.length));
    const wide = Math.min(220, (width - 12 * (widest - 1)) / widest);
    const full = Math.min(width, widest * wide + 12 * (widest - 1));
    const spots = new Map();
    laid.forEach((own, row) => {
      const left = (full - own.length * wide - 12 * (own.length - 1)) / 2;
      own.forEach((place, at) => spots.set(place, [left + at * (wide + 12), 20 + GAP + row * (HEIGHT + GAP)]));
    });
    const bottom = 20 + GAP + laid.length * (HEIGHT + GAP);
    const drawing = shape("svg", { class: "graph", width: full, height: bottom + 16, viewBox: `0 0 ${full} ${bottom + 16}`, role: "img", "aria-label": words });
    const middle = full / 2;
    const top = (place) => [spots.get(place)[0] + wide / 2, spots.get(place)[1]];
    const foot = (place) => [top(place)[0], top(place)[1] + HEIGHT];
    drawing.append(patterns(), shape("text", { class: "end", x: middle, y: 14, "text-anchor": "middle" }, "a sample"));
    for (const place of laid[0] ?? []) drawing.append(curve([middle, 20], top(place)));
    for (let i = 0; i < joined.length; i += 2) {
      const [start, end] = [joined[i], joined[i + 1]];
      drawing.append(curve(foot(start), end < 0 ? [middle, bottom] : top(end)));
    }
    if (!links.length) for (const place of laid.at(-1) ?? []) drawing.append(curve(foot(place), [middle, bottom]));
    for (const [place, [x, y]] of spots) drawing.append(box(blocks[place], x, y, wide));
    drawing.append(shape("text", { class: "end", x: middle, y: bottom + 13, "text-anchor": "middle" }, "an answer"));
    return drawing;
  };

  return { draw };
})();
