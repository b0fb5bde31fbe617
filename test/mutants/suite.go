package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// suite are the tests of a checkout.
type suite struct {
	root string
	tags string
	dir  string // of what it builds
	// programs are the test programs by package, with all mutants.
	programs map[string]string
	environ  []string
}

// build builds the test programs with the mutants, and returns those that do not
// compile, which are left out. Without a mutant in effect all tests pass.
func (s *suite) build(ctx context.Context, all []mutant, tests []string) (without map[int]bool, err error) {
	without = map[int]bool{}
	for {
		list, err := overlay(s.root, s.dir, slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return without[m.number] }))
		if err != nil {
			return nil, err
		}
		// Programs that tests build have the mutants too.
		s.environ = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+list)
		failed, err := s.compile(ctx, tests)
		if err != nil {
			return nil, err
		}
		if failed == "" {
			break
		}
		numbers, err := uncompiled(s.root, failed)
		if err != nil || len(numbers) == 0 {
			return nil, fmt.Errorf("build the tests: %w:\n%s", errors.Join(err, errors.New("no mutant is on these lines")), failed)
		}
		for _, n := range numbers {
			without[n] = true
		}
	}
	for _, t := range tests {
		if found, err := s.finds(ctx, t, 0); err != nil || found != "" {
			return nil, fmt.Errorf("without a mutant %s fails: %s%w", t, found, err)
		}
	}
	return without, nil
}

// compile returns the go command's output if it fails.
func (s *suite) compile(ctx context.Context, tests []string) (failed string, err error) {
	s.programs = map[string]string{}
	for i, t := range tests {
		program := filepath.Join(s.dir, fmt.Sprintf("tests%d", i))
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-tags="+s.tags, "-o", program, t)
		cmd.Dir, cmd.Env = s.root, s.environ
		out, err := cmd.CombinedOutput()
		switch exit := (*exec.ExitError)(nil); {
		case errors.As(err, &exit) && ctx.Err() == nil:
			return string(out), nil
		case err != nil:
			return "", err
		}
		s.programs[t] = program
	}
	return "", nil
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^panic: .{0,60}|^fatal error: .{0,60}`)

// finds runs the tests of a package with a mutant in effect, and returns which test
// fails; "": none.
func (s *suite) finds(ctx context.Context, test string, number int) (string, error) {
	cmd := exec.CommandContext(ctx, s.programs[test], "-test.failfast", "-test.timeout=5m")
	cmd.Dir, cmd.Env = filepath.Join(s.root, test), append(slices.Clip(s.environ), fmt.Sprint(variable, "=", number))
	out, err := cmd.CombinedOutput()
	switch exit := (*exec.ExitError)(nil); {
	case err == nil:
		return "", nil
	case !errors.As(err, &exit) || ctx.Err() != nil:
		return "", fmt.Errorf("run the tests of %s: %w", test, errors.Join(err, ctx.Err()))
	}
	return test + " " + strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimSpace(failure.FindString(string(out))), "--- FAIL: ")), " "), nil
}

// tries returns which test of the packages finds a mutant; "": none.
func (s *suite) tries(ctx context.Context, tests []string, number int) (string, error) {
	for _, t := range tests {
		if found, err := s.finds(ctx, t, number); err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}
