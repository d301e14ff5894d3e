// Package bench measures: it reads a scenario, makes its traffic, sends the
// same traffic to each target, writes down what every request came to, and
// computes all tables from those raw logs alone.
//
// A trial's requests are a function of the scenario's seed and the trial's
// number. A target changes what becomes of a request, never what is asked; what
// depends on outcomes (a conversation's next turn, a refused client's return)
// draws its random numbers per request, not in the order of events.
//
// The package never decides about a request: that is the controller's, or the
// proxy's that is compared with it. Two runners share one scenario: live over
// real sockets, and virtual over the same controller and the same engine model
// under a made-up clock.
package bench
