import abc


class BaseTrainer(abc.ABC):
    epochs = 3

    @abc.abstractmethod
    def step(self, batch):
        """One update; returns the loss."""

    @abc.abstractmethod
    def batches(self):
        ...

    def fit(self):
        for self.epoch in range(self.epochs):  # <- epoch loop
            losses = [0.0]
            loader = self.batches()
            while (batch := next(loader, None)) is not None:  # <- batch loop
                losses.append(self.step(batch))  # <- update
            print(type(self).__name__, self.epoch, sum(losses) / (len(losses) - 1))
        return self
