package fence

import (
	"testing"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/testkit"
)

// sabotages are builds with steps omitted or reordered, a scenario that must
// fail, and its failure text.
var sabotages = []struct {
	name     string
	left     []workload.Replacement
	scenario func(s *site, program string)
	symptom  string
}{
	{
		name: "the intent is recorded too late",
		left: []workload.Replacement{{
			File: "fence/enforce/fence.go",
			Old:  "\tbefore, _, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {\n\t\treturn plan.Fence",
			New:  "\tcrashpoint.Hit(\"fence.intent\")\n\tbefore, _, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {\n\t\treturn plan.Fence",
		}},
		scenario: func(s *site, program string) { s.killAt(program, "fence.intent", s.records(), s.host(1, 7)) },
		symptom:  "does not apply the recorded fence",
	},
	{
		// Where descriptors of other processes are readable, the record is a
		// second guard, so the first one is omitted too.
		name: "sessions that are being ended are not recorded",
		left: []workload.Replacement{{
			File: "fence/enforce/local.go",
			Old:  "\tif err := e.ledger.RecordEnding(ctx, fresh); err != nil {\n\t\treturn err\n\t}\n",
			New:  "",
		}, {
			File: "fence/sock/sock.go",
			Old:  "if s.namespace == 0 {",
			New:  "if s.namespace >= 0 {",
		}},
		scenario: (*site).hang,
		symptom:  "want a code of [Unavailable]",
	},
	{
		// The filter alone: the session sleeps, and resumes with all bytes that
		// its client has sent meanwhile.
		name: "sessions are not ended",
		left: []workload.Replacement{{
			File: "fence/enforce/local.go",
			Old:  "type host struct {",
			New:  "func (h host) Sessions(context.Context, []netip.Prefix) ([]volume.Session, error) { return nil, nil }\n\ntype host struct {",
		}},
		scenario: func(s *site, program string) {
			h := s.host(1, 7)
			s.silent(program, h, h.v4)
		},
		symptom: "after the answer, when",
	},
	{
		name: "recorded fences are not applied at the start",
		left: []workload.Replacement{{
			File: "fence/endpoint/endpoint.go",
			Old:  "return e.Enforcer.Restore(ctx)",
			New:  "return nil",
		}, { // which might be as fast
			File: "fence/enforce/guard.go",
			Old:  "e.each(ctx, e.config.Changed, func() { e.check(ctx) })",
			New:  "first := true\n\te.each(ctx, e.config.Changed, func() {\n\t\tif !first {\n\t\t\te.check(ctx)\n\t\t}\n\t\tfirst = false\n\t})",
		}},
		scenario: func(s *site, program string) { s.reboot(program) },
		symptom:  "before its fences are applied",
	},
}

// A scenario must fail for the build without its step; otherwise it proves
// nothing.
func TestSabotageTurnsRed(t *testing.T) {
	t.Parallel()
	for _, c := range sabotages {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program := workload.BuildWith(t, c.left...)
			testkit.MustFail(t, c.symptom, func(t testing.TB) { c.scenario(newSite(t), program) })
		})
	}
}
