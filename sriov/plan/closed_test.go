package plan

import (
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestCloses(t *testing.T) {
	const sibling, other = "0000:3b:00.1", "0000:5e:00.0"
	s := State{PFs: []PF{{Address: pf0, VFs: []VF{{Address: "0000:3b:02.0"}}}, {Address: sibling}, {Address: other}}}
	for name, c := range map[string]struct {
		plan Plan
		want map[string]string
		node string
	}{
		"nothing":                 {Plan{Notes: []Finding{{PF: pf0, Text: "n"}}}, map[string]string{}, ""},
		"a problem of a function": {Plan{Problems: []Finding{{PF: pf0, Function: "0000:3b:02.0", Text: "p"}}}, map[string]string{"0000:3b:02.0": "p"}, ""},
		"a problem of a PF":       {Plan{Problems: []Finding{{PF: pf0, Text: "p"}, {PF: pf0, Text: "q"}}}, map[string]string{pf0: "p"}, ""},
		"a problem of the node":   {Plan{Problems: []Finding{{Text: "p"}, {PF: other, Text: "q"}}}, map[string]string{other: "q"}, "p"},
		"a step on a function":    {Plan{Steps: []Step{Unbind{"0000:3b:02.0"}}}, map[string]string{"0000:3b:02.0": "unbind 0000:3b:02.0 from its driver"}, ""},
		"a step on a PF":          {Plan{Steps: []Step{SetUp{pf0}}}, map[string]string{pf0: "bring up " + pf0}, ""},
		"a step on a card": {Plan{Steps: []Step{SetNumVFs{PF: sibling}}}, map[string]string{
			pf0: "remove the virtual functions of " + sibling, sibling: "remove the virtual functions of " + sibling}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, node := c.plan.Closes(s)
			testkit.Diff(t, "closed", c.want, got)
			testkit.Diff(t, "node", c.node, node)
		})
	}
}
