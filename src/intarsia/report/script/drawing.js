// What tables, mosaics and flows have in common: shapes, the colours of groups, numbers in words, the choice of a run.
"use strict";

const Drawing = (() => {
  const { make } = Intarsia;

  /** Return a shape of a drawing; text is always text, never markup. */
  const shape = (tag, attributes = {}, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const LISTENERS = new Map();
  /** Call a function whenever the theme or the width changes, as long as an element is on the page. */
  const redrawn = (element, draw) => {
    LISTENERS.set(element, draw);
    new ResizeObserver(() => element.isConnected && draw()).observe(element);
  };
  /** Draw all that is drawn on the page anew. */
  const redraw = () => {
    for (const [element, draw] of LISTENERS) {
      if (element.isConnected) draw();
      else LISTENERS.delete(element);
    }
  };
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  const short = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`);

  const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

  /** Return the run that was chosen; before anybody chose, the one that is first. */
  const chosen = (runs, label) => runs.find((run) => run.label === label) ?? runs.find(({ first }) => first) ?? runs[0];

  /** Return a choice among runs, where there are several. */
  const picker = (runs, chosen, change) => {
    if (runs.length < 2) return [];
    const select = make("select");
    for (const { label } of runs) select.append(make("option", { value: label }, label));
    select.value = chosen;
    select.addEventListener("change", () => change(select.value));
    return [make("label", {}, "Run ", select)];
  };

  return { shape, redrawn, short, count, chosen, picker };
})();

/** Who shares a block, as a colour: those that are no group's, then one a group; hatches where colours repeat. */
const Tiles = (() => {
  const { make } = Intarsia;
  const KINDS = ["none", "own", "alone", "out", "everyone"];
  const WORDS = ["no such block", "stays with the client", "kept for one client alone", "left out", "shared by all who use it"];
  const COLOURS = 8;
  const group = (colour) => colour - KINDS.length;

  const name = (groups, colour) => (colour < KINDS.length ? WORDS[colour] : groups[group(colour)]);

  /** Return the colour as a variable of the theme, and how it is hatched. */
  const look = (colour) => {
    if (colour === 4) return { variable: "--tile-everyone", hatch: "" };
    if (colour < KINDS.length) return { variable: "", hatch: KINDS[colour] };
    const lap = Math.floor(group(colour) / COLOURS) % 3;
    return { variable: `--tile-${(group(colour) % COLOURS) + 1}`, hatch: ["", "striped", "dotted"][lap] };
  };

  /** Return a tile for a key. */
  const swatch = (colour) => {
    const { variable, hatch } = look(colour);
    const mark = make("span", { class: `tile ${hatch}`, "aria-hidden": "true" });
    if (variable) mark.style.setProperty("--own", `var(${variable})`);
    return mark;
  };

  /** Return in words with whom a block is shared by so many clients. */
  const sharing = (groups, colour, others) => {
    const many = Drawing.count(others, "other");
    return [
      "the model has no such block",
      "stays with the client",
      "kept by the server for this client alone",
      "left out: the model does not use it",
      `shared with ${many}: everyone who uses it`,
    ][colour] ?? `group ${groups[group(colour)]}: shared with ${many}`;
  };

  return { KINDS, name, look, swatch, sharing };
})();
