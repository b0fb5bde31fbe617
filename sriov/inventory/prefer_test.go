package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

// spare returns a pool of devices "id node PF", with "!" appended if unhealthy.
func spare(texts ...string) Pool {
	var p Pool
	for _, text := range texts {
		var m Member
		text, wrong := strings.CutSuffix(text, "!")
		if wrong {
			m.Wrong = "it is gone"
		}
		m.Function = &Function{}
		if n, err := fmt.Sscan(text, &m.ID, &m.Function.NUMA, &m.Function.PF); n != 3 {
			panic(err)
		}
		p.Members = append(p.Members, m)
	}
	return p
}

func TestPrefer(t *testing.T) {
	two := spare("a0 0 A", "a1 0 A", "a2 0 A", "b0 0 B", "b1 0 B", "c0 1 C", "c1 1 C", "d0 -1 D", "d1 -1 D", "w0 1 C!")
	for _, c := range []struct {
		name            string
		available, must string
		size            int
		want            string
	}{
		{"none", "a0 a1", "", 0, ""},
		{"negative size", "a0 a1", "", -1, ""},
		{"nothing is available", "", "", 3, ""},
		{"the PF with most available first", "a0 b0 b1", "", 1, "b0"},
		{"round robin over PFs", "a0 a1 a2 b0 b1", "", 4, "a0 b0 a1 b1"},
		{"until a PF is exhausted", "a0 a1 a2 b0", "", 4, "a0 b0 a1 a2"},
		{"PFs of required devices count", "a0 a1 a2 b0 b1", "a2", 3, "a2 b0 a0"},
		{"the smallest sufficient node", "a0 a1 b0 c0 c1", "", 2, "c0 c1"},
		{"the only node with enough", "a0 a1 b0 c0 c1", "", 3, "a0 b0 a1"},
		{"the node of required devices", "a0 a1 b0 c0 c1", "b0", 2, "b0 a0"},
		{"the node of required devices before a smaller one", "a0 a1 b0 c0", "a0", 2, "a0 b0"},
		{"another node if the required one is insufficient", "a0 b0 c0 c1", "b0", 3, "b0 c0 c1"},
		{"the nodes of required devices if sufficient", "a0 a1 a2 b0 c0 c1 d0 d1", "a0 c0", 6, "a0 c0 b0 a1 a2 c1"},
		{"few nodes if none is sufficient", "a0 a1 a2 c0 c1 d0", "", 4, "a0 a1 a2 c0"},
		{"no known node last", "c0 c1 d0 d1", "", 2, "c0 c1"},
		{"no known node", "a0 d0 d1", "", 2, "d0 d1"},
		{"unhealthy or unknown devices last", "w0 c0 c1 x0", "", 3, "c0 c1 w0"},
		{"unhealthy or unknown devices, too few", "w0 c0 x0", "", 5, "c0 w0 x0"},
		{"required unhealthy or unknown devices", "w0 x0 c0 c1", "w0 x0", 3, "w0 x0 c0"},
		{"too few", "a0 c0", "c0", 9, "c0 a0"},
		{"more required than size", "a0 a1 b0", "b0 a1 a0", 2, "a0 a1"},
		{"duplicate ids", "a0 a0 b0 b0", "b0 b0", 2, "b0 a0"},
	} {
		got := Prefer(two, strings.Fields(c.available), strings.Fields(c.must), c.size)
		testkit.Diff(t, c.name, c.want, strings.Join(got, " "))
	}
}

func drawSpare(t *rapid.T) (p Pool, available, must []string, size int) {
	for i := range rapid.IntRange(0, 10).Draw(t, "members") {
		pf := rapid.IntRange(0, 3).Draw(t, "pf")
		m := Member{Device: Device{ID: fmt.Sprintf("v%d", i), Function: &Function{PF: fmt.Sprint("p", pf), NUMA: pf/2 + rapid.IntRange(-1, 1).Draw(t, "node")}}}
		if rapid.IntRange(0, 9).Draw(t, "wrong") == 0 {
			m.Wrong = "it is gone"
		}
		p.Members = append(p.Members, m)
	}
	for i := range len(p.Members) + 1 {
		if rapid.IntRange(0, 4).Draw(t, "available") > 0 {
			available = append(available, fmt.Sprintf("v%d", i))
			if rapid.IntRange(0, 4).Draw(t, "must") == 0 {
				must = append(must, available[len(available)-1])
			}
		}
	}
	return p, available, must, rapid.IntRange(0, len(available)+1).Draw(t, "size")
}

func TestPreferReturnsValidChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, available, must, size := drawSpare(t)
		before := slices.Clone(available)
		got := Prefer(p, available, must, size)
		if !slices.Equal(before, available) {
			t.Errorf("Prefer modified available: %v, %v", before, available)
		}
		if len(got) != min(size, len(available)) || len(sortedUnique(got)) != len(got) {
			t.Errorf("%v are not %d of %d", got, size, len(available))
		}
		for _, id := range got {
			if !slices.Contains(available, id) {
				t.Errorf("%s is not available", id)
			}
		}
		for _, id := range must {
			if len(must) <= size && !slices.Contains(got, id) {
				t.Errorf("%s must be among %v", id, got)
			}
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		shuffle(r, p.Members)
		shuffle(r, available)
		shuffle(r, must)
		if again := Prefer(p, available, must, size); !slices.Equal(got, again) {
			t.Errorf("the result depends on the order: %v, %v", got, again)
		}
	})
}

// cost has the most important criterion first.
func cost(p Pool, must, chosen []string) [3]int {
	members := map[string]Member{}
	for _, m := range p.Members {
		members[m.ID] = m
	}
	all, others, pfs := map[int]bool{}, map[int]bool{}, map[string]int{}
	var g [3]int
	for _, id := range chosen {
		m, known := members[id]
		if !slices.Contains(must, id) && (!known || m.Wrong != "") {
			g[0]++
		}
		if !known {
			continue
		}
		pfs[m.Function.PF]++
		if slices.Contains(must, id) || m.Wrong == "" {
			all[m.Function.NUMA] = true
		}
		if !slices.Contains(must, id) && m.Wrong == "" {
			others[m.Function.NUMA] = true
		}
	}
	g[1] = len(all)
	if len(others) > 1 {
		g[2] = 1
	}
	return g
}

// No choice has fewer nodes, or is spread better over PFs on the same nodes.
func TestPreferIsOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, available, must, size := drawSpare(t)
		if size < len(must) || size > len(available) {
			return
		}
		got := Prefer(p, available, must, size)
		mine, best := cost(p, must, got), cost(p, must, got)
		crowd := crowding(p, got)
		for choice := range choices(available, size) {
			if slices.ContainsFunc(must, func(id string) bool { return !slices.Contains(choice, id) }) {
				continue
			}
			if g := cost(p, must, choice); slices.Compare(g[:], best[:]) < 0 {
				best = g
			}
			if one(p, must, got) && from(p, must, got) == from(p, must, choice) && crowding(p, choice) < crowd {
				t.Errorf("%v is spread better than %v", choice, got)
			}
		}
		if mine != best {
			t.Errorf("%v of %v with %v: %v, the best is %v", got, available, must, mine, best)
		}
	})
}

func choices(of []string, size int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for set := range 1 << len(of) {
			var choice []string
			for i, id := range of {
				if set>>i&1 == 1 {
					choice = append(choice, id)
				}
			}
			if len(choice) == size && !yield(choice) {
				return
			}
		}
	}
}

// More devices on one PF cost more.
func crowding(p Pool, chosen []string) int {
	of, sum := map[string]int{}, 0
	for _, m := range p.Members {
		if slices.Contains(chosen, m.ID) {
			of[m.Function.PF]++
		}
	}
	for _, n := range of {
		sum += n * n
	}
	return sum
}

func from(p Pool, must, chosen []string) string {
	nodes, bad := map[int]int{}, slices.Clone(chosen)
	for _, m := range p.Members {
		if !slices.Contains(chosen, m.ID) || slices.Contains(must, m.ID) || m.Wrong != "" {
			continue
		}
		nodes[m.Function.NUMA]++
		bad = slices.DeleteFunc(bad, func(id string) bool { return id == m.ID })
	}
	return fmt.Sprint(nodes, sortedUnique(bad))
}

func one(p Pool, must, chosen []string) bool { return cost(p, must, chosen)[2] == 0 }
