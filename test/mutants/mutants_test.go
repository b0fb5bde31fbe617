package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

const source = `package p

type known bool

func sign(n int) (s string, err error) {
	if n < 0 && n != -7 {
		return "-", nil
	}
	count("positive")
	return "+", err
}

var counted = map[string]int{}

func count(what string) { counted[what]++ }

func typed(a, b known) known { return a || b }

func ends() int { panic("always") }
`

const tests = `package p

import "testing"

func TestSign(t *testing.T) {
	for n, want := range map[int]string{-8: "-", -7: "+", 1: "+"} {
		if s, _ := sign(n); s != want {
			t.Error(n, s)
		}
	}
	if counted["positive"] != 2 {
		t.Error(counted)
	}
}
`

// Each mutant that compiles is in effect alone, in one program for all.
func TestMutants(t *testing.T) {
	root := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(root, "p"), 0o700))
	for name, text := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "p/p.go": source, "p/p_test.go": tests} {
		testkit.Must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	all := testkit.Value(mutantsOf(root, "p"))(t)
	for i := range all {
		all[i].number = i + 1
	}
	s := suite{root: root, dir: t.TempDir()}
	without := testkit.Value(s.build(t.Context(), all, []string{"./p"}))(t)
	got := map[string]string{}
	for _, m := range all {
		if without[m.number] {
			got[m.String()] = "does not compile"
			continue
		}
		got[m.String()] = testkit.Value(s.tries(t.Context(), []string{"./p"}, m.number))(t)
	}
	const found = "./p TestSign"
	testkit.Diff(t, "results", map[string]string{
		"!(n < 0 && n != -7)":           found,
		"|| for && in n < 0 && n != -7": found,
		"<= for < in n < 0":             "", // no test has 0
		"== for != in n != -7":          found,
		`without count("positive")`:     found,
		"return nil for err":            "", // it is nil
		"&& for || in a || b":           "does not compile",
		`without panic("always")`:       "does not compile",
	}, got)
}
