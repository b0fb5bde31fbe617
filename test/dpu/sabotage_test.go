package dpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// sabotages are builds without one step, a scenario that must fail, and its
// failure text.
var sabotages = []struct {
	name     string
	left     []workload.Replacement
	scenario func(s *site)
	symptom  string
}{
	{
		name: "requests to SNAP are not recorded first",
		left: []workload.Replacement{{
			File: "dpu/plugin/create.go",
			Old:  "if err := p.table.Put(ctx, d, objects...); err != nil {\n\t\treturn created{}, err\n\t}\n\tcrashpoint.Hit(\"dpu-create.recorded\")",
			New:  "crashpoint.Hit(\"dpu-create.recorded\")",
		}, {
			File: "dpu/plugin/unanswered.go",
			Old:  "if err := p.table.PutObject(ctx, sent); err != nil {",
			New:  "if err := ctx.Err(); err != nil {",
		}},
		scenario: func(s *site) { s.killedAndLeft("dpu-create.object") },
		symptom:  "held, and no device needs it",
	},
	{
		name:     "a start does not undo interrupted creates",
		left:     []workload.Replacement{{File: "dpu/plugin/plugin.go", Old: "p.left[d.Volume] = errInterrupted", New: "_, _ = d, errInterrupted"}},
		scenario: func(s *site) { s.killedAndLeft("dpu-create.object") },
		symptom:  "held, and no device needs it",
	},
	{
		// The check for exposed devices is a second guard, so it is omitted
		// too.
		name: "the users of a controller are not counted",
		left: []workload.Replacement{{
			File: "dpu/plugin/remove.go",
			Old:  "if !ok || slices.ContainsFunc(p.table.Users(id), func(v string) bool { return v != d.Volume }) {",
			New:  "if !ok || slices.ContainsFunc(p.table.Users(id), func(v string) bool { return false }) {",
		}, {
			File: "dpu/object/look.go",
			Old:  "if err == nil && where != \"\" {\n\t\terr = errs.Errorf(",
			New:  "if err == nil && where == \"everywhere\" {\n\t\terr = errs.Errorf(",
		}},
		scenario: (*site).twoOfOneSubsystem,
		symptom:  "was removed while the host used it",
	},
	{
		name:     "GetDevice does not check the SNAP process",
		left:     []workload.Replacement{{File: "dpu/plugin/look.go", Old: "if process != d.Process {", New: "if process == \"\" {"}},
		scenario: (*site).twoOfOneSubsystem,
		symptom:  "want NOT_FOUND",
	},
	{
		name:     "a create that failed is not rolled back",
		left:     []workload.Replacement{{File: "dpu/plugin/create.go", Old: "return \"\", p.rollBack(ctx, d, err, p.removeDevice)", New: "return \"\", err"}},
		scenario: (*site).nothingToShow,
		symptom:  "held, and no device needs it",
	},
	{
		name:     "a canceled create succeeds",
		left:     []workload.Replacement{{File: "dpu/plugin/create.go", Old: "Keys: []string{volumeKey(q.Volume)}, Fingerprint: fmt.Sprint(\"CreateDevice \"", New: "Keys: []string{\"create \" + q.Volume}, Fingerprint: fmt.Sprint(\"CreateDevice \""}},
		scenario: (*site).negated,
		symptom:  "DeleteDevice was answered with OK, and",
	},
}

// killedAndLeft kills the plugin during a create, which is not repeated.
func (s *site) killedAndLeft(point string) {
	s.target("v", 1)
	env, file := s.armed(point, 1)
	s.start(env...)
	_, err := s.try(s.namespace("v", "v", 1))
	if !s.died(point, file, err) {
		s.t.Fatalf("%s was not reached", point)
	}
	s.start()
	s.empty()
}

// twoOfOneSubsystem deletes a device beside another one that a host uses, and
// then loses both.
func (s *site) twoOfOneSubsystem() {
	s.target("shared", 2)
	s.start()
	beside, v := s.neighbour(s.namespace("neighbour", "shared", 1)), s.namespace("v", "shared", 2)
	s.create(v)
	err := s.plugin.Delete(s.ctx, v.id, "")
	s.unharmed(beside)
	testkit.Must(s.t, err)
	testkit.Must(s.t, s.snap.Restart())
	s.create(v) // which restores the controller, and the other volume's bdev
	s.absent(beside.volume, beside.device)
}

// nothingToShow fails after the attach.
func (s *site) nothingToShow() {
	s.target("empty", 0)
	s.start()
	_, err := s.try(s.namespace("v", "empty", 1))
	s.refused(err)
	s.empty()
}

// negated deletes a device during its creation.
func (s *site) negated() {
	s.target("v", 1)
	s.start()
	v := s.namespace("v", "v", 1)
	s.snap.Forget()
	s.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Hold: patience / 4}) // the create is in progress when the device is deleted
	creating := make(chan error, 1)
	go func() { creating <- onlyErr(s.try(v)) }()
	s.eventually("the attach", func() error {
		for _, c := range s.snap.Calls() {
			if c.Method == "bdev_nvme_attach_controller" {
				return nil
			}
		}
		return errors.New("no attach")
	})
	err := s.plugin.Delete(s.ctx, v.id, "")
	s.refusal(err)
	// Without the shared key either call can reach the controller first, so the
	// create can also fail by chance: it has to report that it was canceled.
	if answer := <-creating; err == nil && (answer == nil || !strings.Contains(answer.Error(), op.ErrUndone.Error())) {
		s.t.Errorf("DeleteDevice was answered with OK, and the CreateDevice that it was to cancel with: %v", answer)
	}
	s.remove(v, "")
	s.empty()
}

func TestSabotageScenariosPassOnProduct(t *testing.T) {
	t.Parallel()
	for _, c := range sabotages {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.scenario(newSite(t, spdktest.Config{SNAP: true}, plain))
		})
	}
}

// A scenario must fail for the build without its step; otherwise it proves
// nothing.
func TestSabotageTurnsRed(t *testing.T) {
	t.Parallel()
	for _, c := range soak.Pick(3, sabotages) { // of the others dpu/plugin has tests
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program := workload.BuildWith(t, c.left...)
			testkit.MustFail(t, c.symptom, func(t testing.TB) {
				s := newSite(t, spdktest.Config{SNAP: true}, program)
				s.agreement = patience / 12 // which it does not reach
				c.scenario(s)
			})
		})
	}
}
