package nvme

import (
	"path"
	"testing"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// sabotages are builds with a wrong order of steps, the kill that must show it,
// and the symptom.
func sabotages() []sabotage {
	return []sabotage{
		{
			name: "the record is removed before the controllers",
			left: workload.Replacement{
				File: "node/nvme/nvme.go",
				Old:  "\tif !shared {\n\t\tif err := a.disconnect(ctx, r); err != nil {",
				New:  "\tif !shared {\n\t\tif err := errors.Join(a.records.remove(r), a.disconnect(ctx, r)); err != nil {",
			},
			kill:    killCase{"", []string{"nvme.deleted"}, []func(*claim) error{(*claim).stage}, (*claim).unstage, false},
			symptom: "after the kill at nvme.deleted left over",
		},
		{
			name: "the record is written after the connections",
			left: workload.Replacement{
				File: "node/nvme/record.go",
				Old:  "\treturn r, !found, s.put(r)\n", New: "\treturn r, !found, nil\n",
			},
			kill:    killCase{"", []string{"nvme.path-connected"}, nil, (*claim).stage, true},
			symptom: "after the kill at nvme.path-connected left over",
		},
	}
}

type sabotage struct {
	name    string
	left    workload.Replacement
	kill    killCase
	symptom string
}

// testSabotage: the test of kills must fail for a build with a wrong order of
// steps.
func (r *rig) testSabotage() {
	r.Stop()
	for _, s := range soak.Pick(1, sabotages()) {
		program := workload.BuildWith(r, s.left)
		r.Program = "sabotaged"
		testkit.Must(r, r.Guest.Push(r.Context(), program, path.Join("/usr/bin", r.Program), 0o755))
		r.Start()
		c := r.volume("sabotaged", "ext4", 32*mib)
		c.connectAs(volumeHost)
		testkit.MustFail(r, s.symptom, func(t testing.TB) {
			failing := *c
			failing.rig = r.in(t)
			failing.kills(s.kill)
		})
		testkit.Must(r, r.Process.Kill(r.Context()))
		r.Run("sh", "-c", `for c in /sys/class/nvme/*/delete_controller; do [ ! -e $c ] || echo 1 > $c; done`)
		r.Program = "cleat"
		r.Start()
		testkit.Must(r, c.unstage())
		c.delete()
	}
}
