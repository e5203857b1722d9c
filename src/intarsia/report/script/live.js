// What a page of `intarsia watch` does more: it listens to the server, shows how runs stand, and takes newer sections in.
"use strict";

const Words = (() => {
  const PATIENCE = 10;
  const WORTH_A_WORD = 3;

  const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);

  const size = (bytes) => {
    if (bytes === null || bytes === undefined) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let [value, unit] = [bytes, 0];
    while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
    return `${unit ? value.toFixed(2) : value} ${units[unit]}`;
  };

  const duration = (seconds) => {
    if (seconds < 100) return `${Math.round(seconds)} s`;
    return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  };

  const ago = (epoch) => {
    const seconds = Date.now() / 1000 - epoch;
    if (seconds < 5) return "now";
    return seconds < 172800 ? `${duration(seconds)} ago` : new Date(1000 * epoch).toLocaleDateString("en-GB");
  };

  const score = (run) => {
    if (run.accuracy !== null && run.accuracy !== undefined) return percent(run.accuracy);
    return run.loss === null || run.loss === undefined ? "–" : `loss ${run.loss.toPrecision(4)}`;
  };

  const rounds = (run) => (run.rounds ? `${run.round} of ${run.rounds}` : String(run.round));

  const counted = (run) => (run.asked ? `${run.counted} of ${run.asked} clients counted` : "");

  const some = (names, all) => names.slice(0, 5).join(", ") + (all > 5 ? ` and ${all - 5} more` : "");

  /** Say who has answered in the exchange that goes on; by name only who lets the others wait. */
  const now = (run) => {
    if (!run.now) return "";
    const { playing, exchange, asked, answered, waiting = [], since } = run.now;
    const beside = playing ? `${playing}${asked ? ", " : ""}` : "";
    if (!asked) return beside;
    const waited = Date.now() / 1000 - since;
    if (!playing && (run.now.round <= run.round || waited < WORTH_A_WORD)) return "";
    const missing = asked - answered;
    const late = missing && waiting.length && waited > PATIENCE;
    return `${beside}${exchange}: ${answered} of ${asked} clients have answered${late ? `; waiting for ${some(waiting, missing)}` : ""}`;
  };

  /** Say what went wrong, a sentence each. */
  const trouble = (run) => {
    const told = [];
    const lost = [[run.failed, "tasks of clients failed"], [run.refused, "updates were refused"]].filter(([n]) => n);
    if (lost.length) {
      const whose = run.losing?.length ? `: ${some(run.losing.map(([name, n]) => `${name} (${n})`), run.losers)}` : "";
      told.push(lost.map(([n, what]) => `${n} ${what}`).join(", ") + whose);
    }
    return [...told, ...run.warnings];
  };

  return { percent, size, duration, ago, score, rounds, counted, some, now, trouble };
})();

const Live = (() => {
  const { make } = Intarsia;
  const SILENCE = 35_000;
  const AGAIN = 3_000;
  const listeners = [];
  let source = null;
  let heard = Date.now();
  let page = "";
  let banner = null;

  const gone = () => {
    if (banner) return;
    const when = new Date(heard).toLocaleTimeString("en-GB");
    const text = `The server has not answered since ${when}: what is shown may be old. It is asked again until it answers.`;
    banner = make("div", { id: "gone", role: "alert" }, text);
    document.body.append(banner);
  };

  const back = () => {
    heard = Date.now();
    banner?.remove();
    banner = null;
  };

  const asked = () => {
    const query = new URLSearchParams(location.search);
    const own = location.pathname.match(/^\/run\/([0-9a-f]+)$/);
    if (own) query.append("run", own[1]);
    if (page) query.append("page", page);
    return `/events?${query}`;
  };

  const close = () => {
    source?.close();
    source = null;
  };

  const open = () => {
    close();
    if (document.hidden) return;
    const own = new EventSource(asked());
    source = own;
    own.addEventListener("beat", back);
    own.addEventListener("news", ({ data }) => {
      back();
      const news = JSON.parse(data);
      for (const listener of listeners) listener(news);
    });
    own.addEventListener("error", () => {
      if (own !== source) return;
      gone();
      if (own.readyState === EventSource.CLOSED) setTimeout(() => own === source && open(), AGAIN);
    });
  };

  /** Tell a function of all news; a page listens as long as somebody can see it. */
  const listen = (listener, version = "") => {
    listeners.push(listener);
    page = version || page;
    if (listeners.length > 1) return;
    open();
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", ({ persisted }) => persisted && open());
    setInterval(() => {
      if (!source || Date.now() - heard < SILENCE) return;
      gone();
      open();
    }, AGAIN);
  };

  return { listen, shows: (version) => (page = version) };
})();

/** Takes newer sections in without taking anything out of the reader's hands. */
const Sections = (() => {
  const CAN_FOCUS = "button, input, select, a, canvas, summary, [tabindex]";
  let pressed = false;
  let typed = 0;
  window.addEventListener("pointerdown", () => (pressed = true), true);
  for (const kind of ["pointerup", "pointercancel", "blur"]) window.addEventListener(kind, () => (pressed = false), true);
  window.addEventListener("keydown", () => (typed = Date.now()), true);

  const busy = () => pressed || Date.now() - typed < 800 || document.activeElement?.tagName === "SELECT";

  const within = (selector) =>
    [...document.querySelectorAll("main > section[id]")].flatMap((section) =>
      [...section.querySelectorAll(selector)].map((element, at) => [`${section.id} ${at}`, element]),
    );

  /** Note what is opened, scrolled and focused; return what brings it back. */
  const kept = () => {
    const open = new Set(within("details").filter(([, own]) => own.open).map(([key]) => key));
    const scrolled = new Map(within(".wide").map(([key, own]) => [key, own.scrollLeft]));
    const focused = within(CAN_FOCUS).find(([, own]) => own === document.activeElement)?.[0];
    const dialog = document.querySelector("dialog[open]");
    const [top, y] = [dialog?.scrollTop, window.scrollY];
    return () => {
      for (const [key, own] of within("details")) if (open.has(key)) own.open = true;
      for (const [key, own] of within(".wide")) if (scrolled.get(key)) own.scrollLeft = scrolled.get(key);
      const had = focused && document.activeElement === document.body && within(CAN_FOCUS).find(([key]) => key === focused);
      if (had) had[1].focus({ preventScroll: true });
      if (dialog?.open) dialog.scrollTop = top;
      window.scrollTo({ top: y, behavior: "instant" });
    };
  };

  const take = (text) => {
    const restore = kept();
    Intarsia.update(text);
    const lead = new DOMParser().parseFromString(text, "text/html").querySelector("p.lead");
    if (lead) document.querySelector("header .lead").textContent = lead.textContent;
    restore();
  };

  const free = async () => {
    while (busy()) await new Promise((done) => setTimeout(done, 200));
  };

  /** Fetch the sections of a page and show them; return their version, or the old one where nobody answers. */
  const fetched = async (address, version) => {
    try {
      const answer = await fetch(address, { headers: { "If-None-Match": `"${version}"` }, cache: "no-store" });
      if (!answer.ok) return version;
      const text = await answer.text();
      await free();
      take(text);
      return answer.headers.get("ETag").replaceAll('"', "");
    } catch {
      return version;
    }
  };

  return { fetched };
})();

const Run = (() => {
  const { make } = Intarsia;
  const { shape } = Drawing;

  const badge = (run) => make("span", { class: `state ${run.state}` }, run.state);

  const bar = (run) => {
    const share = run.rounds ? Math.min(1, run.round / run.rounds) : 0;
    const own = make("span", { class: `bar ${run.state}`, "aria-hidden": "true" });
    own.style.setProperty("--done", `${100 * share}%`);
    return own;
  };

  /** Draw a course in little: accuracy, or the loss, by round. */
  const spark = (run) => {
    const points = run.curve.filter(([, value]) => value !== null);
    if (points.length < 2) return [];
    const [rounds, values] = [points.map(([round]) => round), points.map(([, value]) => value)];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (round) => 1 + (68 * (round - rounds[0])) / (rounds.at(-1) - rounds[0]);
    const y = (value) => 19 - (18 * (value - low)) / (high - low || 1);
    const d = points.map(([round, value], at) => `${at ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    return [shape("svg", { class: "spark", viewBox: "0 0 70 20", width: 70, height: 20, "aria-hidden": "true" }, shape("path", { d }))];
  };

  const left = (run) => (run.left === null || run.left === undefined ? "" : `about ${Words.duration(run.left)}`);

  return { badge, bar, spark, left };
})();

/** How one run stands, or several: above the sections of their page. */
Intarsia.part("standing", (element, data) => {
  const { make } = Intarsia;
  const runs = new Map(data.runs.map((run) => [run.key, run]));
  let version = data.page;
  let fetching = false;
  let wanted = version;

  const fact = (title, ...value) => make("div", {}, make("dt", {}, title), make("dd", {}, ...value));

  const facts = (run) => {
    const told = [fact("Accuracy", Words.score(run), ...Run.spark(run)), fact("Worst client", Words.percent(run.worst)), fact("Sent", Words.size(run.bytes))];
    if (Run.left(run)) told.push(fact("Left", Run.left(run)));
    if (Words.counted(run)) {
      const missing = run.missing?.length ? [make("small", {}, `without ${Words.some(run.missing, run.asked - run.counted)}`)] : [];
      told.push(fact("Last round", Words.counted(run), ...missing));
    }
    return make("dl", { class: "facts" }, ...told);
  };

  const alone = (run) => {
    const head = make("p", { class: "head" }, Run.badge(run), make("b", {}, `Round ${Words.rounds(run)}`), Run.bar(run));
    const now = Words.now(run);
    const lines = [now && `Round ${run.round + 1}, ${now}`, run.why, run.reading ? "Its tables are still being read." : ""].filter(Boolean);
    const trouble = Words.trouble(run).map((text) => make("li", {}, text));
    return [head, facts(run), ...lines.map((line) => make("p", {}, line)), ...(trouble.length ? [make("ul", { class: "trouble" }, ...trouble)] : [])];
  };

  const beside = (run) => {
    const link = make("a", { href: `/run/${run.key}` }, run.name);
    const told = [`round ${Words.rounds(run)}`, Words.score(run), run.left ? `${Run.left(run)} left` : "", Words.counted(run)];
    return make("p", { class: "head" }, Run.badge(run), link, ` ${run.method} · ${told.filter(Boolean).join(" · ")}`, Run.bar(run));
  };

  const made = make("div", { class: "made" });
  const show = () => {
    const all = [...runs.values()];
    const links = [...made.querySelectorAll("a")];
    const had = links.indexOf(document.activeElement);
    made.replaceChildren(...(all.length === 1 ? alone(all[0]) : all.map(beside)));
    if (had >= 0) made.querySelectorAll("a")[had]?.focus({ preventScroll: true });
  };

  /** Fetch what is newer, one page at a time. */
  const renew = async () => {
    if (fetching) return;
    fetching = true;
    while (wanted && wanted !== version) {
      const got = await Sections.fetched(data.sections + (runs.size > 1 ? location.search : ""), version);
      if (got === version) break;
      version = got;
      Live.shows(version);
    }
    fetching = false;
  };

  element.append(make("p", { class: "back" }, make("a", { href: "/" }, "All runs")), made);
  show();
  setInterval(show, 10_000);
  Live.listen((news) => {
    for (const run of Object.values(news.runs)) runs.set(run.key, run);
    for (const key of news.gone) if (runs.has(key)) Object.assign(runs.get(key), { state: "failed", why: "its folder is not there any more", left: null, now: null });
    show();
    wanted = news.page;
    renew();
  }, version);
});
