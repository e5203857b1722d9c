// Pages that are opened from a disk may not start workers. There, the search runs in an empty frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(source) {
      this.onmessage = this.onerror = null;
      this.waiting = [];
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" });
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(source, location.href).href;
      script.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = (event) => this.onerror?.(event);
      inside.document.documentElement.append(script);
    }

    postMessage(data) {
      if (this.ready) setTimeout(() => this.frame.contentWindow?.onmessage?.({ data }));
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
