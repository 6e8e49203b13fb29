// Browsers start no Worker on pages that are opened as files, and the search runs in one. Here an invisible
// frame stands in for it: it runs the worker's script, and messages pass between page and frame as events.
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.frame = frame;
      const scope = frame.contentWindow;
      const base = new URL(url, document.baseURI);
      // In a worker, postMessage is to the page; a window's own would post to itself.
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      scope.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
      const load = (source) => new Promise((resolve, reject) => {
        const script = scope.document.createElement("script");
        script.src = new URL(source, base);
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${script.src}`));
        scope.document.body.append(script);
      });
      this.loaded = load(base);
      this.loaded.catch((error) => this.dispatchEvent(new ErrorEvent("error", { error, message: error.message })));
    }

    postMessage(data) {
      const { contentWindow } = this.frame;
      this.loaded.then(() => contentWindow.dispatchEvent(new MessageEvent("message", { data })), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
