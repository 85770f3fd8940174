// Plotly's own module is five megabytes, sent and run again for every widget; a page that takes longer than two seconds
// for it shows nothing at all. This one asks for plotly's once per page, and then for the figure as it is by then.
//
// Plotly's view goes on listening when its place on the page is gone, and then fails at the next update, before other
// views of the same figure hear of it. So what it listens to while it is drawn is listened to in the name of its place:
// anywidget ends that with the place. VERSION is replaced by plotly's.

const shared = (globalThis["__workbenchPlotly_VERSION"] ??= {asked: 0, arrived: false});
shared.loaded ??= new Promise((done, fail) => Object.assign(shared, {done, fail}));
export default () => {
  let ready, answered = false, place = null;
  return {
    initialize({model}) {
      let showNow;
      const current = new Promise((done) => { showNow = done; });
      model.on("msg:custom", (message, buffers) => {
        if (message?.plotly === "module" && !shared.arrived) {
          shared.arrived = true;
          const address = URL.createObjectURL(new Blob([buffers[0]], {type: "text/javascript"}));
          import(address).then(shared.done, shared.fail).finally(() => URL.revokeObjectURL(address));
        } else if (message?.plotly === "state") {
          answered = true;
          setTimeout(showNow, 50);  // the state came before, but is taken in later
        }
      });
      const ask = () => {
        if (shared.arrived) return;
        if (Date.now() - shared.asked > 5000) {  // who was asked first may have been closed meanwhile
          shared.asked = Date.now();
          model.send({plotly: "module"});
        }
        setTimeout(ask, 1000);
      };
      ask();
      ready = shared.loaded.then(async (module) => {
        const widget = module.default();
        widget.initialize({model: {...model, on: (name, heard) => (place ?? model).on(name, heard)}});
        const askForState = () => {
          if (answered) return;
          model.send({plotly: "state"});
          setTimeout(askForState, 1000);
        };
        askForState();
        await current;
        return widget;
      });
    },
    async render(context) {
      const widget = await ready;
      place = context.model;
      try {
        return widget.render(context);
      } finally {
        place = null;
      }
    },
  };
};
