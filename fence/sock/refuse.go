package sock

import (
	"fmt"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// refusal tells of sessions that nobody visible serves; nil when there are none.
func (e *ender) refusal() error {
	if len(e.refused) == 0 {
		return nil
	}
	one := e.refused[0].session
	return errs.Errorf(errs.Precondition, "%d of %d sessions, one from %v to %v, are open in %s; whether they have ended cannot be seen. "+
		"Fence a kernel target by its own means, or allow kernel targets if it is enough that the connection is destroyed; let this program see the PID namespace of a server in a container",
		len(e.refused), e.all, one.Client, one.Server, invisible)
}

// unfinished tells what is still waited for, by what it waits for.
func (e *ender) unfinished(cause error) error {
	const most = 5
	byState := map[string][]*ending{}
	var states []string
	for _, one := range e.left {
		if byState[one.state] == nil {
			states = append(states, one.state)
		}
		byState[one.state] = append(byState[one.state], one)
	}
	var parts []string
	for i, state := range states {
		if i == most {
			parts = append(parts, "and more")
			break
		}
		of := byState[state]
		parts = append(parts, fmt.Sprintf("%d, one from %v to %v: %s", len(of), of[0].session.Client, of[0].session.Server, orUnknown(state)))
	}
	return errs.Errorf(errs.Unavailable, "%d of %d sessions have not ended (%s): %w", len(e.left), e.all, strings.Join(parts, "; "), cause)
}

func orUnknown(state string) string {
	if state == "" {
		return "not looked at yet"
	}
	return state
}
