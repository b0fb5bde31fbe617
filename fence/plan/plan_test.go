package plan

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

var (
	anna  = volume.FenceOwner{Digest: strings.Repeat("a", 64), Keys: []string{"cluster", "zone"}}
	berta = volume.FenceOwner{Digest: strings.Repeat("b", 64)}
	early = time.Unix(1000, 0)
	late  = time.Unix(2000, 0)
)

var compared = cmp.Options{cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty()}

func blocksOf(words ...string) []netip.Prefix {
	var blocks []netip.Prefix
	for _, w := range words {
		blocks = append(blocks, netip.MustParsePrefix(w))
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return blocks
}

func askOf(owner volume.FenceOwner, words ...string) Request {
	return Request{Owner: owner, Blocks: blocksOf(words...)}
}

// recorded parses records such as "a fenced 10.0.0.0/8", all since early.
func recorded(lines ...string) []volume.Fence {
	var list []volume.Fence
	for _, line := range lines {
		f := strings.Fields(line)
		owner := anna
		if f[0] == "b" {
			owner = berta
		}
		list = append(list, volume.Fence{Block: netip.MustParsePrefix(f[2]), Owner: owner, Phase: volume.FencePhase(f[1]), Since: early})
	}
	slices.SortFunc(list, Compare)
	return list
}

// phases formats a list for recorded.
func phases(list []volume.Fence) []string {
	var lines []string
	for _, f := range list {
		lines = append(lines, f.Owner.Digest[:1]+" "+string(f.Phase)+" "+f.Block.String())
	}
	return lines
}

func TestPhases(t *testing.T) {
	req := askOf(anna, "10.0.0.0/24")
	unfence := func(now []volume.Fence, req Request, at time.Time) []volume.Fence {
		next, err := Unfence(now, req, at)
		if err != nil {
			t.Error(err)
		}
		return next
	}
	for _, c := range []struct {
		name string
		step func([]volume.Fence, Request, time.Time) []volume.Fence
		want map[string]string // after, by phase before; "" is no record
	}{
		{"Fence", Fence, map[string]string{"": "fencing", "fencing": "fencing", "fenced": "fenced", "lifting": "fencing", "lifted": "fencing"}},
		{"Confirm", Confirm, map[string]string{"": "", "fencing": "fenced", "fenced": "fenced", "lifting": "lifting", "lifted": "lifted"}},
		{"Unfence", unfence, map[string]string{"": "", "fencing": "lifting", "fenced": "lifting", "lifting": "lifting", "lifted": "lifted"}},
		{"Forget", Forget, map[string]string{"": "", "fencing": "fencing", "fenced": "fenced", "lifting": "", "lifted": ""}},
	} {
		for before, after := range c.want {
			// Another owner's fence never changes.
			now, want := recorded("b fenced 10.0.1.0/24"), recorded("b fenced 10.0.1.0/24")
			if before != "" {
				now = append(recorded("a "+before+" 10.0.0.0/24"), now...)
			}
			if after != "" {
				want = append(recorded("a "+after+" 10.0.0.0/24"), want...)
				if after != before {
					want[0].Since = late
				}
			}
			if diff := cmp.Diff(want, c.step(now, req, late), compared); diff != "" {
				t.Errorf("%s of %q (-want +got):\n%s", c.name, before, diff)
			}
		}
	}
}

func TestFenceKeepsForce(t *testing.T) {
	req := askOf(anna, "10.0.0.0/8")
	insisted := req
	insisted.Force = true
	now := Fence(nil, insisted, early)
	if !now[0].Force {
		t.Error("force is not recorded")
	}
	if again := Fence(now, req, late); !again[0].Force || !again[0].Since.Equal(early) {
		t.Errorf("a repeated call changed %+v", again[0])
	}
	if forced := Fence(Fence(nil, req, early), insisted, late); !forced[0].Force {
		t.Error("force of a later call is not recorded")
	}
	lifting := testkit.Value(Unfence(now, req, late))(t)
	if again := Fence(lifting, req, late); again[0].Force {
		t.Error("force of a fence that is being lifted is kept for a new one")
	}
}

func TestUnfenceRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		now  []string
		req  []string
		want []string // in the message; none: accepted
	}{
		{"nothing on record", nil, []string{"10.0.0.0/24"}, nil},
		{"apart", []string{"b fenced 10.0.1.0/24"}, []string{"10.0.0.0/24"}, nil},
		{"other family", []string{"b fenced ::/0"}, []string{"0.0.0.0/0"}, nil},
		{"same block of another", []string{"b fenced 10.0.0.0/24"}, []string{"10.0.0.0/24"},
			[]string{"10.0.0.0/24 is fenced by another parameter set (no parameters, digest bbbbbbbbbbbb)"}},
		{"around, of another", []string{"b fencing 10.0.0.0/8"}, []string{"10.0.0.0/24"}, []string{"10.0.0.0/24 lies in 10.0.0.0/8, which is fenced by another parameter set"}},
		{"inside, of another", []string{"b fenced 10.0.0.7/32"}, []string{"10.0.0.0/24"}, []string{"10.0.0.0/24 contains 10.0.0.7/32, which is fenced by another"}},
		{"lifting, of another", []string{"b lifting 10.0.0.7/32"}, []string{"10.0.0.0/24"}, []string{"contains 10.0.0.7/32, which is still being unfenced by another parameter set"}},
		{"lifted, of another", []string{"b lifted 10.0.0.7/32", "a fenced 10.0.0.6/32"}, []string{"10.0.0.7/32"}, nil},
		{"around, own", []string{"a fenced 10.0.0.0/8"}, []string{"10.0.0.0/24"}, []string{"10.0.0.0/24 lies in 10.0.0.0/8, which is fenced by these parameters: unfence that block"}},
		{"inside, own", []string{"a fenced 10.0.0.7/32"}, []string{"10.0.0.0/24"}, []string{"10.0.0.0/24 contains 10.0.0.7/32, which is fenced by these parameters: unfence that block"}},
		{"inside, own, lifting", []string{"a lifting 10.0.0.7/32"}, []string{"10.0.0.0/24"}, []string{"still being unfenced: repeat that call"}},
		{"inside, own, but asked for too", []string{"a fenced 10.0.0.7/32"}, []string{"10.0.0.0/24", "10.0.0.7/32"}, nil},
		{"inside, own, asked for too, a repeat", []string{"a lifting 10.0.0.7/32"}, []string{"10.0.0.0/24", "10.0.0.7/32"}, nil},
		{"own beside another's", []string{"a fenced 10.0.0.0/24", "b fenced 10.0.0.0/24"}, []string{"10.0.0.0/24"}, nil},
		{"own lifted beside another's", []string{"a lifted 10.0.0.0/24", "b fenced 10.0.0.0/24"}, []string{"10.0.0.0/24"}, nil},
		{"one of two", []string{"a fenced 10.0.0.0/24", "b fenced 10.0.1.0/24"}, []string{"10.0.0.0/24", "10.0.1.0/24"}, []string{"nothing was unfenced", "10.0.1.0/24 is fenced by another"}},
		{"the smallest around is named", []string{"b fenced 10.0.0.0/8", "b fenced 10.0.0.0/23"}, []string{"10.0.0.0/24"}, []string{"lies in 10.0.0.0/23"}},
		{"many", []string{"b fenced 10.0.0.0/8"}, []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24", "10.0.4.0/24", "10.0.5.0/24", "10.0.6.0/24"},
			[]string{"10.0.4.0/24 lies in", "and 2 more"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := recorded(c.now...)
			next, err := Unfence(now, askOf(anna, c.req...), late)
			if len(c.want) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, errs.Precondition) || next != nil {
				t.Fatalf("got %v, %v; want it refused", phases(next), err)
			}
			for _, words := range c.want {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("got error %q, want %q", err, words)
				}
			}
		})
	}
}

// A completed unfence can be repeated until another owner fences these
// addresses; after one that left another's fence, even then.
func TestForgetKeepsRecordsForRetry(t *testing.T) {
	now := recorded("a lifting 10.0.0.0/24", "a lifting 10.0.1.0/24", "b fenced 10.0.0.7/32")
	now = Forget(now, askOf(anna, "10.0.0.0/24", "10.0.1.0/24"), late)
	if diff := cmp.Diff([]string{"a lifted 10.0.0.0/24", "b fenced 10.0.0.7/32"}, phases(now)); diff != "" {
		t.Fatal(diff)
	}
	if _, err := Unfence(now, askOf(anna, "10.0.0.0/24", "10.0.1.0/24"), late); err != nil {
		t.Errorf("the repeated call is refused: %v", err)
	}
	now = testkit.Value(Unfence(now, askOf(berta, "10.0.0.7/32"), late))(t)
	if now = Forget(now, askOf(berta, "10.0.0.7/32"), late); len(now) != 0 {
		t.Errorf("still recorded: %v", phases(now))
	}
	// Fences that are lifted together do not conflict.
	now = recorded("a lifting 10.0.0.0/24", "a lifting 10.0.0.7/32")
	if now = Forget(now, askOf(anna, "10.0.0.0/24", "10.0.0.7/32"), late); len(now) != 0 {
		t.Errorf("still recorded: %v", phases(now))
	}
}

func TestDescribe(t *testing.T) {
	many := volume.FenceOwner{Digest: "0123456789abcdef", Keys: strings.Split("a b c d e f g h i j", " ")}
	long := volume.FenceOwner{Digest: "01", Keys: []string{strings.Repeat("k", 200), "line\nbreak"}}
	for want, o := range map[string]volume.FenceOwner{
		`keys "cluster", "zone", digest aaaaaaaaaaaa`:                                    anna,
		`no parameters, digest bbbbbbbbbbbb`:                                             berta,
		`keys "a", "b", "c", "d", "e", "f", "g", "h" and 2 more, digest 0123456789ab`:    many,
		`keys "` + strings.Repeat("k", 128) + `"… (200 bytes), "line\nbreak", digest 01`: long,
	} {
		if got := Describe(o); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
