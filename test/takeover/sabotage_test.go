package takeover

import (
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

type sabotage struct {
	name, symptom string
	left          workload.Replacement
}

// notFenced is the symptom of a takeover after which the lost node writes on.
const notFenced = "after the certificate"

// sabotages are controllers with a step omitted, and what the judge of histories
// must say of them.
var sabotages = []sabotage{
	{"fences are not asked for or read back", notFenced, workload.Replacement{
		File: "takeover/plan/next.go",
		Old:  "if found && read.Err == \"\" && read.Intent == intent.Digest && contains(read.Held, t.Addresses) {",
		New:  "if found {",
	}},
	{"the taint is set before the certificate", "want this order", workload.Replacement{
		File: "takeover/plan/next.go",
		Old:  "\tif s.Certificate == nil {\n\t\ts.Certificate = Certificate{",
		New:  "\tif s.Certificate == nil && o.isTainted() {\n\t\ts.Certificate = Certificate{",
	}},
}

func TestSabotageTurnsRed(t *testing.T) {
	for _, c := range soak.Pick(1, sabotages) {
		t.Run(c.name, func(t *testing.T) { c.turnsRed(t, kinds) })
	}
}

// turnsRed fails unless the judge finds the omission with places of these kinds.
func (c sabotage) turnsRed(t *testing.T, of []kind) {
	t.Helper()
	program := testkit.Build(t, testkit.Cleat, "-tags", tags, workload.Overlay(t, c.left))
	for _, kind := range of {
		testkit.MustFail(t, c.symptom, func(t testing.TB) {
			p := kind.make(t)
			s := p.common()
			s.program = program
			h, accepted := s.watch(), p.write()
			s.controller()
			testkit.Value(s.run("start"))(t)
			s.awaitReason("TakenOver")
			if taken := time.Now(); c.symptom == notFenced {
				testkit.Eventually(t, "the lost node writes on", func() bool { return accepted().After(taken) })
			}
			s.judge(h, accepted())
		})
	}
}
