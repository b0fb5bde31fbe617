package gate

import "time"

// Timer names one of a machine's timers.
type Timer string

// timers are the deadlines that a machine waits for. One that fires early or
// twice does no harm: the deadline here counts.
type timers map[Timer]time.Time

// due reports whether the deadline has come, and takes it away then.
func (t timers) due(name Timer, now time.Time) bool {
	at, armed := t[name]
	if !armed || now.Before(at) {
		return false
	}
	delete(t, name)
	return true
}
