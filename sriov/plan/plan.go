package plan

import "fmt"

// Plan is what is left to do.
type Plan struct {
	// Steps are what can be done, in this order. When one fails, those of the
	// same PF that follow are not safe to do: read and plan again.
	Steps []Step
	// Touches are the addresses of the functions that the steps disturb, each
	// once: no pod may hold one of them.
	Touches []string
	// Problems keep the node from being as it shall: no step can solve them.
	Problems []Problem
	// Notes are worth knowing but keep nothing back.
	Notes []Note
	// More says that what follows depends on the outcome of the steps: read
	// and plan again. It is wise to do so always.
	More bool
}

// Done reports whether the node is as it shall be: no steps, no problems.
func (p Plan) Done() bool { return len(p.Steps) == 0 && len(p.Problems) == 0 }

// Problem is what cannot be as wanted.
type Problem struct {
	PF     string // its address; "" is the whole node
	Reason string // what is wrong, and what would be right
}

func (p Problem) String() string { return located(p.PF, p.Reason) }

// Note is something that the wish or the node has and that is left alone.
type Note struct {
	PF   string // its address; "" is the whole node
	Text string
}

func (n Note) String() string { return located(n.PF, n.Text) }

func located(pf, text string) string {
	if pf == "" {
		return text
	}
	return fmt.Sprintf("%s: %s", pf, text)
}

// Options say what a plan must know besides the wish and the node.
type Options struct {
	// Managed are the addresses of PFs whose virtual functions were made by
	// plans before. One that the wish does not name any more loses them; all
	// other PFs that it does not name are left alone. PFs that were managed
	// externally do not belong here.
	Managed []string
	// Held are the addresses of functions that pods hold. What the network of
	// a pod may change about its function (addresses, MTU, trust, spoof check)
	// is then not judged; its driver and its being there are.
	Held []string
	// Fresh are the addresses of PFs whose functions were just made: what their
	// tables show as addresses is what drivers chose by chance, and is set, so that
	// the functions keep it.
	Fresh []string
	// GUIDs are the static ones of the operator's file, for InfiniBand. PFs
	// without a pool get GUIDs made from their own.
	GUIDs []GUIDPool
}
