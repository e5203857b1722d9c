// The mosaic: clients beside clients, block upon block, a colour for every group; a slider goes through the rounds.
"use strict";

(() => {
  const { make } = Intarsia;
  const { chosen, count, picker, redrawn, short } = Drawing;
  const MOST_LETTERS = 14;
  const MOST_KEYS = 20;

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Return the tiles of every row after a moment: a colour a client. */
  const unfolded = (run, moment) => {
    run.whole ??= [];
    run.whole[moment] ??= run.tiles[moment].map((patches) => {
      const row = [];
      for (let i = 0; i < patches.length; i += 2) for (let n = 0; n < patches[i + 1]; n += 1) row.push(patches[i]);
      return row;
    });
    return run.whole[moment];
  };

  /** Return the last moment that is not after a round. */
  const momentAt = (run, round) => Math.max(0, run.rounds.findLastIndex((own) => own <= round));

  const hatched = (context, kind, ratio) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8 * ratio;
    const pen = tile.getContext("2d");
    pen.scale(ratio, ratio);
    pen.strokeStyle = pen.fillStyle = kind === "striped" || kind === "dotted" ? variable("--tile-ink") : variable("--hatch");
    pen.globalAlpha = kind === "striped" || kind === "dotted" ? 0.35 : 1;
    pen.lineWidth = 1.2;
    pen.beginPath();
    if (kind === "own") for (const at of [-8, 0, 8]) pen.moveTo(at, 8), pen.lineTo(at + 8, 0);
    if (kind === "striped") for (const at of [-8, 0, 8]) pen.moveTo(at, 0), pen.lineTo(at + 8, 8);
    pen.stroke();
    if (kind === "alone" || kind === "dotted") pen.fillRect(3, 3, 2, 2);
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  };

  const draw = ({ run, state, canvas, grid }) => {
    const wide = canvas.parentElement.clientWidth;
    if (!wide) return;
    const row = rowHeight(run);
    const step = wide / run.clients.length;
    const named = step >= 13;
    const longest = Math.min(MOST_LETTERS, Math.max(...run.clients.map((name) => name.length)));
    const high = row * run.rows.length + (named ? 7 * longest + 14 : 4);
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.height = `${high}px`;
    grid.style.setProperty("--row", `${row}px`);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const patterns = Object.fromEntries(["own", "alone", "out", "striped", "dotted"].map((kind) => [kind, hatched(pen, kind, ratio)]));
    const paint = { pen, patterns, step, row, ink: variable("--tile-ink"), run };
    run.tiles[momentAt(run, state.shown)].forEach((patches, at) => strip(paint, patches, at));
    if (named) names(pen, run.clients, step, row * run.rows.length);
    if (state.at) mark(pen, state.at, step, row);
  };

  const rowHeight = (run) => Math.max(18, Math.min(44, 420 / run.rows.length));

  const strip = (paint, patches, at) => {
    let start = 0;
    for (let i = 0; i < patches.length; i += 2) {
      patch(paint, patches, i, start, at);
      start += patches[i + 1];
    }
  };

  const patch = ({ pen, patterns, step, row, ink, run }, patches, i, start, at) => {
    const [colour, number] = [patches[i], patches[i + 1]];
    if (colour === 0) return;
    const { variable: name, hatch } = Tiles.look(colour);
    const gap = Math.min(1, step * number * 0.15);
    const place = [start * step + gap, at * row + 2, Math.max(0.5, number * step - 2 * gap), row - 4];
    pen.beginPath();
    pen.roundRect(...place, Math.min(5, place[2] / 3));
    if (name) {
      pen.fillStyle = variable(name);
      pen.fill();
    } else if (place[2] > 3) {
      pen.strokeStyle = variable("--hatch");
      pen.setLineDash(hatch === "out" ? [2, 3] : []);
      pen.lineWidth = 1;
      pen.stroke();
      pen.setLineDash([]);
    }
    if (hatch) {
      pen.fillStyle = patterns[hatch];
      pen.fill();
    }
    if (step >= 12) seams(pen, start, number, step, at * row + 2, row - 4);
    if (!name) return;
    pen.fillStyle = variable(name);
    label({ pen, ink }, colour === 4 ? (patches.includes(3) ? "shared" : "everyone") : Tiles.name(run.groups, colour), place);
  };

  const seams = (pen, start, number, step, y, high) => {
    pen.fillStyle = variable("--card");
    for (let n = 1; n < number; n += 1) pen.fillRect((start + n) * step - 0.5, y, 1, high);
  };

  /** Write a group's name upon its tiles, where there is room. */
  const label = ({ pen, ink }, text, [x, y, wide, high]) => {
    const size = Math.min(13, high - 6);
    if (size < 9) return;
    pen.font = `600 ${size}px system-ui, sans-serif`;
    const long = pen.measureText(text).width;
    if (long > wide - 8) return;
    const [middle, half] = [x + wide / 2, long / 2 + 4];
    pen.fillRect(middle - half, y + (high - size) / 2 - 2, 2 * half, size + 4);
    pen.fillStyle = ink;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, middle, y + high / 2 + 0.5);
  };

  const names = (pen, clients, step, y) => {
    pen.fillStyle = variable("--faint");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    clients.forEach((name, at) => {
      pen.save();
      pen.translate((at + 0.5) * step, y + 6);
      pen.rotate(-Math.PI / 2);
      pen.fillText(short(name, MOST_LETTERS), 0, 0);
      pen.restore();
    });
  };

  const mark = (pen, { client, row: at }, step, row) => {
    pen.strokeStyle = variable("--ink");
    pen.lineWidth = 2;
    const wide = Math.max(step, 5);
    pen.strokeRect((client + 0.5) * step - wide / 2, at * row + 1, wide, row - 2);
  };

  /** Say what a tile is, and offer to open its client. */
  const tell = (view) => {
    const { run, state, words } = view;
    if (!state.at) {
      words.replaceChildren("Point at a tile, or move through the tiles by the arrow keys.");
      return;
    }
    const { client, row } = state.at;
    const tiles = unfolded(run, momentAt(run, state.shown))[row];
    const others = tiles.filter((own) => own === tiles[client]).length - 1;
    const name = run.clients[client];
    const text = `${name}, ${run.rows[row][0]}: ${Tiles.sharing(run.groups, tiles[client], others)}.`;
    const open = make("button", { type: "button" }, `Open ${short(name, 24)}`);
    open.addEventListener("click", () => {
      const known = Clients.known.get(run.label);
      const place = known ? known.names.indexOf(name) : -1;
      if (place >= 0) ClientView.open(known, place);
    });
    words.replaceChildren(`${text} `, ...(Clients.known.has(run.label) ? [open] : []));
  };

  const choose = (view, client, row) => {
    const { run, state } = view;
    const within = (value, most) => Math.max(0, Math.min(most - 1, value));
    const at = { client: within(client, run.clients.length), row: within(row, run.rows.length) };
    if (state.at?.client === at.client && state.at?.row === at.row) return;
    state.at = at;
    draw(view);
    tell(view);
  };

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  const listen = (view) => {
    const { run, state, canvas } = view;
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / rowHeight(run));
      const client = Math.floor(((event.clientX - box.left) / box.width) * run.clients.length);
      if (row < run.rows.length) choose(view, client, row);
    };
    canvas.addEventListener("pointerdown", (event) => {
      state.kept = true;
      under(event);
    });
    canvas.addEventListener("pointermove", (event) => !state.kept && under(event));
    canvas.addEventListener("pointerleave", () => (state.kept = Boolean(state.at)));
    canvas.addEventListener("pointerenter", () => (state.kept = false));
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      state.kept = true;
      const { client, row } = state.at ?? { client: -step[0], row: -step[1] };
      choose(view, client + step[0], row + step[1]);
    });
  };

  /** Say what is seen after a round: since when it is so, and who changed then. */
  const since = (run, round) => {
    const moment = momentAt(run, round);
    const from = run.rounds[moment];
    const now = round === 0 ? "before the first round" : `after round ${round}`;
    if (moment === 0) return `${now}: nothing has changed yet`;
    const [old, own] = [unfolded(run, moment - 1), unfolded(run, moment)];
    const moved = run.clients.filter((_, at) => own.some((row, block) => row[at] !== old[block][at])).length;
    return `${now}: ${count(moved, "client")} changed ${from === round ? "in it" : `in round ${from}`}`;
  };

  const slider = (view) => {
    const { run, state } = view;
    if (run.rounds.length === 1) return make("p", {}, "Who shares what is the same in every round of this run.");
    const input = make("input", { type: "range", min: 0, max: run.done, step: 1, "aria-label": "Round" });
    const told = make("output", {});
    const show = () => {
      input.value = state.shown;
      told.textContent = since(run, state.shown);
      input.setAttribute("aria-valuetext", told.textContent);
    };
    input.addEventListener("input", () => {
      state.shown = Number(input.value);
      state.round = state.shown === run.done ? null : state.shown;
      show();
      draw(view);
      tell(view);
    });
    show();
    return make("div", { class: "slider" }, make("span", { "aria-hidden": "true" }, "Round"), input, told);
  };

  const key = (run) => {
    const counts = new Map();
    for (const moment of run.tiles) for (const row of moment) for (let i = 0; i < row.length; i += 2) counts.set(row[i], true);
    const colours = [...counts.keys()].filter(Boolean).sort((a, b) => a - b);
    const list = make("ul", { class: "key tiles-key" });
    for (const colour of colours.slice(0, MOST_KEYS)) {
      list.append(make("li", {}, Tiles.swatch(colour), make("span", {}, short(Tiles.name(run.groups, colour), 40))));
    }
    if (colours.length > MOST_KEYS) list.append(make("li", {}, `and ${colours.length - MOST_KEYS} groups more`));
    return list;
  };

  const show = (element, runs, state) => {
    const run = chosen(runs, state.run);
    if (state.run !== run.label) Object.assign(state, { run: run.label, at: null });
    state.shown = Math.min(state.round ?? run.done, run.done);
    if (state.at && (state.at.client >= run.clients.length || state.at.row >= run.rows.length)) state.at = null;
    const choice = picker(runs, run.label, (label) => {
      Object.assign(state, { run: label, at: null });
      show(element, runs, state);
      element.querySelector("select").focus();
    });
    const words = make("p", { class: "words", role: "status", id: "mosaic-words" });
    const about = `Who shares what: ${count(run.clients.length, "client")}, ${count(run.rows.length, "row")} of blocks`;
    const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": about, "aria-describedby": "mosaic-words" });
    const blocks = run.rows.map(([name, size]) => make("div", { title: name }, make("b", {}, name), ...(size ? [make("small", {}, size)] : [])));
    const grid = make("div", { class: "grid" }, make("div", { class: "blocks" }, ...blocks), make("div", { class: "tiles" }, canvas));
    const view = { run, state, canvas, grid, words };
    const foot = make("p", { class: "note" }, `${count(run.clients.length, "client")}, those who share side by side`);
    element.querySelector(":scope > .made")?.remove();
    element.append(make("div", { class: "made" }, ...choice.map((own) => make("div", { class: "tools" }, own)), slider(view), grid, foot, words, key(run)));
    listen(view);
    tell(view);
    redrawn(canvas, () => draw(view));
  };

  Intarsia.part("mosaic", show);
})();
