package remote

import (
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// anyStatus draws any status that a host can have.
func anyStatus() *rapid.Generator[watch.Status] {
	return rapid.Custom(func(t *rapid.T) watch.Status {
		text := func(label string) string { return rapid.StringN(0, 8, 40).Draw(t, label) }
		path := func(label string) string {
			return "/" + string(rapid.SliceOfN(rapid.ByteRange(1, 255), 0, 20).Draw(t, label))
		}
		phase := func(label string) watch.Phase { return rapid.SampledFrom(phases()).Draw(t, label) }
		when := func(label string) time.Time {
			if rapid.Bool().Draw(t, label+" is set") {
				return time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, label), rapid.Int64Range(0, 999_999_999).Draw(t, label+" ns")).UTC()
			}
			return time.Time{}
		}
		s := watch.Status{
			Plugin: watch.Plugin{Type: text("type"), Name: text("name"), Endpoint: path("endpoint"), Socket: path("socket")},
			Phase:  phase("phase"), Step: phase("step"), Error: text("error"), Reason: text("reason"),
			Found: when("found"), Since: when("since"), NextTry: when("next"),
			Attempts: rapid.IntRange(0, 1<<31).Draw(t, "attempts"), Dead: rapid.Bool().Draw(t, "dead"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "versions") {
			s.Versions = append(s.Versions, text("version"))
		}
		return s
	})
}

// A status is the same after encoding and decoding.
func TestStatusRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyStatus().Draw(t, "status")
		text, err := proto.Marshal(toWire(want))
		if err != nil {
			t.Fatalf("%+v cannot be sent: %v", want, err)
		}
		var p hostv1.Plugin
		testkit.Must(t, proto.Unmarshal(text, &p))
		if diff := cmp.Diff(want, fromWire(&p)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestEveryPhaseHasItsNumber(t *testing.T) {
	all := phases()
	if len(all) != len(hostv1.Phase_name) {
		t.Errorf("%d phases, the contract has %d", len(all), len(hostv1.Phase_name))
	}
	for n := range hostv1.Phase_name {
		p := phaseFromWire(hostv1.Phase(n))
		if back := phaseToWire(p); back != hostv1.Phase(n) {
			t.Errorf("%s is %q, and that is %s", hostv1.Phase(n), p, back)
		}
	}
	if got := phaseFromWire(99); got != "phase 99" {
		t.Errorf("a phase of a later release: %q", got)
	}
	if got := phaseToWire("brooding"); got != hostv1.Phase_PHASE_UNSPECIFIED {
		t.Errorf("an unknown phase: %s", got)
	}
	if slices.Contains(all[1:], "") {
		t.Errorf("a number without a phase: %q", all)
	}
}

// Invalid UTF-8 from a plugin or a handler does not prevent encoding.
func TestBadTextIsSent(t *testing.T) {
	s := watch.Status{Plugin: watch.Plugin{Type: "\xff", Name: "\xfe", Versions: []string{"\xfd"}}, Error: "a\xc3", Reason: "\xf0\x28"}
	if _, err := proto.Marshal(toWire(s)); err != nil {
		t.Error(err)
	}
	if s := toWire(watch.Status{Attempts: -1}); s.GetAttempts() != 0 || s.GetFailure() != nil || s.GetFound() != nil {
		t.Errorf("%v", s)
	}
}

func TestPathsOnTheWire(t *testing.T) {
	for path, want := range map[string]string{
		"/run/a.sock": "/run/a.sock", "/run/ü.sock": "/run/ü.sock", "/run/\xff.sock": `/run/\xff.sock`,
		`/run/a\x2db.sock`: `/run/a\\x2db.sock`, "\uFFFD": "\uFFFD", "": "",
	} {
		if got := pathToWire(path); got != want {
			t.Errorf("%q is written %q, want %q", path, got, want)
		}
	}
}

// FuzzPath: decoding reverses encoding, and different paths stay different.
func FuzzPath(f *testing.F) {
	f.Add("/run/a.sock", `/run/\xff`)
	f.Add("/run/\xff", `\`)
	f.Fuzz(func(t *testing.T, one, two string) {
		a, b := pathToWire(one), pathToWire(two)
		if !utf8.ValidString(a) || pathFromWire(a) != one || (a == b) != (one == two) {
			t.Errorf("%q is written %q and read %q; %q is written %q", one, a, pathFromWire(a), two, b)
		}
		_ = pathFromWire(one) // any input from a peer
	})
}
