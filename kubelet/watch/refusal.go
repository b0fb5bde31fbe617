package watch

import (
	"fmt"
	"time"
)

// refusal is the last refused registration at a path. It outlives the socket:
// registrars exit after a refusal, and what they leave, or the socket of their next
// start, does not show why.
type refusal struct {
	Plugin
	failure
	at time.Time
}

// maxRefusals bounds the memory for paths that are never used again.
const maxRefusals = 1000

func (r refusal) String() string {
	return fmt.Sprintf("%s %s was refused at %s when %s: %s (likely cause: %s)", r.Type, r.Name, r.at.Format(time.TimeOnly), r.step, r.text, r.reason)
}

func (h *Host) refused(p Plugin, f failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.refusals[p.Socket]; !known && len(h.refusals) >= maxRefusals {
		oldest := p.Socket
		for path, r := range h.refusals {
			if first, any := h.refusals[oldest]; !any || r.at.Before(first.at) {
				oldest = path
			}
		}
		delete(h.refusals, oldest)
	}
	h.refusals[p.Socket] = refusal{p, f, time.Now()}
}

func (h *Host) accepted(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.refusals, path)
}

// explainUnserved adds the refusal after which the plugin ended to the reason why
// no process serves its socket.
func (h *Host) explainUnserved(path, reason string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, known := h.refusals[path]; known {
		return fmt.Sprintf("%s, and ended: %s", r, reason)
	}
	return reason
}

// inherit, with Host.mu held, shows the refusal of an earlier socket at the path
// until the first result of this one.
func (s *socket) inherit() {
	if r, known := s.refusals[s.path]; known {
		s.status.Step, s.status.Error, s.status.Reason = r.step, r.text, r.reason
	}
}

// refusalsOf returns the refused registrations at a path, or of a name.
func (h *Host) refusalsOf(word string) (all []refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for path, r := range h.refusals {
		if path == word || r.Name == word && word != "" {
			all = append(all, r)
		}
	}
	return all
}
