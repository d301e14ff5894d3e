package telemetry

import (
	"context"
	"log/slog"
	"time"

	"switchyard/admission"
	"switchyard/gateway"
)

// Observer is the gateway's observer: metrics, decision log, access log.
type Observer struct {
	*Metrics
	Decisions *Decisions
	Log       *slog.Logger
}

// RequestEnded implements gateway.Observer. A request that failed is worth a
// warning; the others are there for whoever debugs.
func (o *Observer) RequestEnded(r gateway.Record) {
	o.Metrics.RequestEnded(r)
	o.Decisions.Add(r.Decision)
	if d := r.Decision; d.WouldRefuse {
		then := "unknown"
		if d.InTime != nil {
			then = map[bool]string{true: "in time", false: "late"}[*d.InTime]
		}
		o.Log.Info("would have refused", "id", r.ID, "class", r.Class, "model", r.Model,
			"deadline_s", d.DeadlineS, "forecast_s", d.ForecastS, "outcome", d.Outcome, "then", then)
	}
	level := slog.LevelDebug
	if r.Outcome == admission.Failed {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !o.Log.Enabled(ctx, level) {
		return
	}
	o.Log.LogAttrs(ctx, level, "request", slog.String("id", r.ID), slog.String("path", r.Path),
		slog.String("outcome", r.Outcome.String()), slog.String("reason", string(r.Reason)), slog.Int("status", r.Status),
		slog.String("class", r.Class), slog.String("key", r.Key), slog.String("model", r.Model),
		slog.String("replica", r.Replica), slog.Int("attempts", r.Attempts), slog.Duration("queued", r.Queued.Round(time.Microsecond)),
		slog.Duration("first_token", r.FirstToken.Round(time.Microsecond)), slog.Duration("took", r.Took.Round(time.Microsecond)),
		slog.Int("output_tokens", r.Usage.OutputTokens), slog.Int64("bytes_out", r.BytesOut))
}

// ReplicaChanged implements gateway.Observer: a replica's change of state is
// what an operator reads the log for.
func (o *Observer) ReplicaChanged(e admission.Event) {
	level := slog.LevelInfo
	switch e.What {
	case admission.EventDown, admission.EventOpened, admission.EventFlagged, admission.EventSlow:
		level = slog.LevelWarn
	}
	o.Log.LogAttrs(context.Background(), level, "replica "+string(e.What), slog.String("replica", e.Replica), slog.String("why", e.Detail))
}
