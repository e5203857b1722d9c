// How groups of clients changed: a column a round in which they did, a ribbon for those who went together.
"use strict";

(() => {
  const { shape, redrawn, short, count } = Drawing;
  const HEIGHT = 300;
  const GAP = 6;
  const BAR = 14;

  /** Return where the groups of a column lie: from top to bottom, as high as they are many. */
  const stacked = (column, total) => {
    const scale = (HEIGHT - GAP * (column.length - 1)) / total;
    let y = 0;
    return column.map(([, number]) => {
      const spot = { y, high: Math.max(1, number * scale), left: 0, right: 0, scale };
      y += spot.high + GAP;
      return spot;
    });
  };

  const filled = (colour) => {
    const { variable } = Tiles.look(colour);
    return `fill: var(${variable || "--hatch"})`;
  };

  const ribbon = (x1, from, x2, to, number, total) => {
    const [high1, high2] = [number * from.scale, number * to.scale];
    const [y1, y2] = [from.y + from.right, to.y + to.left];
    from.right += high1;
    to.left += high2;
    const middle = (x1 + x2) / 2;
    const d = `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}V${y2 + high2}C${middle} ${y2 + high2} ${middle} ${y1 + high1} ${x1} ${y1 + high1}Z`;
    return shape("path", { class: "ribbon", d });
  };

  const drawn = (data, width) => {
    const total = data.columns[0].reduce((sum, [, number]) => sum + number, 0);
    const room = Math.min(110, width / 4);
    const step = (width - BAR - room) / Math.max(1, data.columns.length - 1);
    const at = (column) => column * step;
    const spots = data.columns.map((column) => stacked(column, total));
    const high = HEIGHT + 34;
    const svg = shape("svg", { class: "flow", width, height: high, viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": data.words });
    data.flows.forEach((flows, column) => {
      for (const [from, to, number] of flows) {
        const own = ribbon(at(column) + BAR, spots[column][from], at(column + 1), spots[column + 1][to], number, total);
        own.setAttribute("style", filled(data.columns[column + 1][to][0]));
        const [before, after] = [data.columns[column][from][2], data.columns[column + 1][to][2]];
        own.append(shape("title", {}, `${count(number, "client")}: ${before} to ${after}`));
        svg.append(own);
      }
    });
    data.columns.forEach((column, number) => bars(svg, column, spots[number], at(number), data, number, step, room));
    return svg;
  };

  const bars = (svg, column, spots, x, data, number, step, room) => {
    const last = number === data.columns.length - 1;
    const free = last ? room - 6 : step - BAR - 6;
    column.forEach(([colour, size, name], place) => {
      const { y, high } = spots[place];
      const bar = shape("rect", { x, y, width: BAR, height: high, rx: 3, class: "bar", style: filled(colour) });
      bar.append(shape("title", {}, `${name}: ${count(size, "client")}`));
      svg.append(bar);
      const text = `${name} · ${size}`;
      if (high >= 12 && free > 40) {
        svg.append(shape("text", { x: x + BAR + 5, y: y + Math.min(high / 2 + 4, 16) }, short(text, Math.floor(free / 7))));
      }
    });
    const round = data.rounds[number];
    const anchor = number === 0 ? "start" : "middle";
    const words = round === 0 ? "start" : `round ${round}`;
    svg.append(shape("text", { class: "round", x: number === 0 ? x : x + BAR / 2, y: HEIGHT + 24, "text-anchor": anchor }, words));
  };

  Intarsia.part("flow", (element, data) => {
    redrawn(element, () => {
      const width = Math.max(240, element.clientWidth);
      if (Number(element.dataset.width) === width && element.querySelector("svg")) return;
      element.dataset.width = width;
      element.querySelector("svg")?.remove();
      element.append(drawn(data, width));
    });
  });
})();
