class Engine:
    def __init__(self, process):
        self.process = process
        self.handlers = {}

    def on(self, event):
        def register(fn):
            self.handlers.setdefault(event, []).append(fn)
            return fn
        return register

    def fire(self, event):
        for fn in self.handlers.get(event, []):
            fn(self)

    def run(self, data, max_epochs=1):
        self.epoch, self.iteration = 0, 0
        while self.epoch < max_epochs:  # <- epoch loop
            for batch in data:  # <- batch loop
                self.output = self.process(self, batch)  # <- update
                self.iteration += 1
                self.fire("iteration")
            self.epoch += 1
            self.fire("epoch")
