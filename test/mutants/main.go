// Command mutants changes one place of the product at a time and runs tests, to
// compare what two sets of tests find:
//
//	go run ./test/mutants -seed 15 -n 300 -before ../checkout fence/request=./fence/request,./fence/peer csi=./csi
//	go run ./test/mutants -seed 15 -n 20 -soak dpu/plugin=./dpu/plugin
//
// Each argument is a package and the packages whose tests are run for it. A mutant that
// survives is tried again: by the tests of an earlier checkout, where its place is the
// same, or by those of make soak. The exit code is 1 if these find one that survives.
//
// A test program has all mutants of its package, and the environment says which one is
// in effect: so it is built once. The tree is not changed.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cleatproject/cleat/test/tree"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	seed := flag.Uint64("seed", 1, "seed of the choice")
	n := flag.Int("n", 20, "number of mutants")
	parallel := flag.Int("parallel", 2, "number of mutants at once")
	before := flag.String("before", "", "checkout of a commit whose tests also try what survives")
	soak := flag.Bool("soak", false, "the tests of make soak also try what survives")
	flag.Parse()
	missed, err := run(ctx, options{*seed, *n, *parallel, *before, *soak}, flag.Args())
	if missed > 0 {
		fmt.Printf("%d survive the tests of now alone\n", missed)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if missed > 0 {
		os.Exit(1)
	}
}

type options struct {
	seed     uint64
	n        int
	parallel int
	before   string
	soak     bool
}

// run prints a table, and returns how many mutants only the second suite finds.
func run(ctx context.Context, o options, args []string) (missed int, err error) {
	root, err := tree.Root()
	if err != nil {
		return 0, err
	}
	var all []mutant
	testsOf := map[string][]string{} // by package
	for _, a := range args {
		pkg, tests, ok := strings.Cut(a, "=")
		if !ok {
			return 0, fmt.Errorf("%q: write PACKAGE=TESTS", a)
		}
		found, err := mutantsOf(root, pkg)
		if err != nil {
			return 0, err
		}
		all, testsOf[filepath.Clean(pkg)] = append(all, found...), strings.Split(tests, ",")
	}
	places := len(all)
	random := rand.New(rand.NewPCG(o.seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(o.n, len(all))]
	for i := range all {
		all[i].number = i + 1
	}
	fmt.Printf("%d places, %d by seed %d\n\n| place | mutant | tests | result |\n|---|---|---|---|\n", places, len(all), o.seed)
	survived, err := o.try(ctx, "tests", suite{root: root}, all, testsOf)
	if err != nil {
		return 0, err
	}
	again, second := survived, suite{root: root, tags: "soak"}
	switch {
	case o.before != "":
		again, second = samePlaces(o.before, survived), suite{root: o.before}
	case !o.soak:
		return 0, nil
	}
	left, err := o.try(ctx, "other tests", second, again, testsOf)
	return len(again) - len(left), err
}

// samePlaces returns the mutants whose place is the same in another checkout.
func samePlaces(root string, all []mutant) (same []mutant) {
	found := map[string]map[string]mutant{} // by package and place
	for _, m := range all {
		pkg := filepath.Dir(m.file)
		if found[pkg] == nil {
			found[pkg] = map[string]mutant{}
			there, err := mutantsOf(root, pkg)
			if err != nil {
				fmt.Fprintln(os.Stderr, "mutants:", err) // a new package
			}
			for _, other := range there {
				found[pkg][other.place] = other
			}
		}
		other, is := found[pkg][m.place]
		if !is {
			m.print("other tests", "the place is not the same")
			continue
		}
		other.number = m.number
		same = append(same, other)
	}
	return same
}

// try runs the tests for each mutant, and returns those that survive.
func (o options) try(ctx context.Context, name string, s suite, all []mutant, testsOf map[string][]string) (survived []mutant, err error) {
	if s.dir, err = os.MkdirTemp("", "mutants-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.dir)
	var tests []string
	for _, t := range testsOf {
		tests = append(tests, t...)
	}
	slices.Sort(tests)
	without, err := s.build(ctx, all, slices.Compact(tests))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.parallel)
	for _, m := range all {
		if without[m.number] {
			m.print(name, "does not compile")
			continue
		}
		group.Go(func() error {
			found, err := s.tries(ctx, testsOf[filepath.Dir(m.file)], m.number)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				return err
			case found == "":
				survived = append(survived, m)
				m.print(name, "survives")
			default:
				m.print(name, found)
			}
			return nil
		})
	}
	err = group.Wait()
	fmt.Printf("\n%s: %d tried, %d survive\n\n", name, len(all)-len(without), len(survived))
	return survived, err
}

func (m mutant) print(suite, result string) {
	fmt.Printf("| %s:%d | `%s` | %s | %s |\n", m.file, m.line, strings.ReplaceAll(m.String(), "|", "\\|"), suite, result)
}
