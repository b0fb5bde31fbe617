package ceph

import (
	"strings"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// fsKillCase is a call that is killed at points, after other calls.
type fsKillCase struct {
	call   string
	before []string
	points []string
}

func fsKillCases() []fsKillCase {
	return []fsKillCase{
		{"stage", []string{"unpublish", "unstage"}, []string{"stage.recorded", "cephfs.recorded", "cephfs.mounted", "stage.attached", "mount.group-given"}},
		{"unstage", []string{"stage", "unpublish"}, []string{"unstage.unmounted", "cephfs.unmounted", "unstage.detached", "unstage.recorded"}},
	}
}

// testKills kills the node service. The next process continues:
// no data is lost, and nothing is left of a volume after it is unstaged.
func (r *fsRig) testKills() {
	const n = 1
	c := r.claim("kills")
	c.attach(n)
	c.run(n, "echo kept > file && sync")
	c.flags = []string{"-group", "1234"}
	c.detach(n)
	for _, k := range fsKillCases() {
		for _, point := range k.points {
			if point == "mount.group-given" {
				c.flags[1] = "1235" // the group is given to what lacks it
			}
			for _, call := range k.before {
				c.call(n, call)
			}
			argv := append([]string{"fsclient", "-site", fsSite}, append(c.flags, k.call, c.name, c.path)...)
			ctx := r.Context()
			p := testkit.Value(r.nodes[n].Guest.Start(ctx, vm.Command{Env: []string{"CLEAT_CRASHPOINT=" + point + "=1"}, Argv: argv}))(r)
			<-p.Done()
			if p.Err() == nil || strings.Contains(p.Log(), "after") {
				r.Fatalf("%s was not reached: %v %s", point, p.Err(), p.Log())
			}
			c.call(n, "held") // reconciles
			if strings.HasPrefix(point, "unstage.") || strings.HasPrefix(point, "cephfs.") || strings.HasPrefix(point, "stage.") {
				r.wantNothing(n)
			}
		}
	}
	c.attach(n)
	if text := c.run(n, "cat file"); text != "kept" {
		r.Errorf("the file has %q", text)
	}
	c.detach(n)
	r.wantNothing(n)
}
