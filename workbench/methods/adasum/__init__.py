"""AdaSum: combine the updates of several ranks by their angles instead of their mean."""
