package sock

import (
	"fmt"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// refusedError reports sessions without a visible process.
func (e *ender) refusedError() error {
	if len(e.refused) == 0 {
		return nil
	}
	one := e.refused[0].session
	return errs.Errorf(errs.Precondition, "%d of %d sessions, one from %v to %v, are open in %s; whether they have ended cannot be verified. "+
		"Fence a kernel target by its own means, or allow kernel targets if destroying the connection is enough; for a server in a container, run this program in a PID namespace that contains the server's",
		len(e.refused), e.all, one.Client, one.Server, noVisibleProcess)
}

// unfinishedError groups sessions by state.
func (e *ender) unfinishedError(cause error) error {
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
		return "not checked yet"
	}
	return state
}
