// Command report runs the parts of the test suite and reports failures, skipped
// tests, the slowest tests, and a closing table of all parts with their times. The
// last lines are what was left out, and each failure with the state of the machine.
//
//	report -results FILE -part NAME [-C DIR] go test ARGUMENTS...   one part: a run of go test
//	report -results FILE -part NAME COMMAND...                      one part: any other command
//	report -results FILE                                            the closing table
//
// A part appends its row to FILE; parts can run in parallel. A skipped test is
// a failure in CI unless it names an entry of test/features. A failed test that
// test/flakes.md lists is retried (see flakes.go).
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	var p part
	results := flag.String("results", "", "file with the rows of all parts")
	flag.StringVar(&p.name, "part", "", "name of the part to run; without one, the closing table is printed")
	flag.StringVar(&p.dir, "C", ".", "directory to run it in")
	flag.StringVar(&p.flakes, "flakes", "test/flakes.md", "list of the tests that CI retries when they fail")
	flag.Parse()
	p.command, p.ci, p.out = flag.Args(), os.Getenv("CI") != "", os.Stdout
	if err := run(*results, p); err != nil {
		fmt.Fprintln(os.Stderr, strings.TrimPrefix(fmt.Sprintf("%s: %v", p.name, err), ": "))
		os.Exit(1)
	}
}

func run(results string, p part) error {
	switch {
	case results == "":
		return errors.New("-results is missing: name the file of the rows")
	case p.name == "":
		return printClosing(os.Stdout, results)
	case len(p.command) == 0:
		return errors.New("no command: name the command that the part runs")
	}
	row, err := p.run()
	return errors.Join(err, appendRow(results, row))
}

// part is one part of the suite: a run of go test, or of another command.
type part struct {
	name    string
	dir     string
	command []string
	flakes  string
	ci      bool
	out     io.Writer
}

func (p part) run() (row, error) {
	r := row{Part: p.name, Start: time.Now()}
	fmt.Fprintf(p.out, "== %s\n", p.name)
	var err error
	if len(p.command) > 2 && p.command[1] == "test" {
		err = p.goTest(&r)
	} else {
		cmd := exec.Command(p.command[0], p.command[1:]...)
		var output bytes.Buffer
		both := io.MultiWriter(p.out, &output)
		cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = p.dir, os.Stdin, both, both
		if err = cmd.Run(); err != nil {
			r.fail(strings.Join(p.command, " "), output.String())
		}
		r.addCPU(cmd)
	}
	r.End, r.OK = time.Now(), err == nil
	if !r.OK && len(r.Failures) == 0 {
		r.fail(p.name, err.Error())
	}
	return r, err
}

func (r *row) fail(what, output string) {
	r.Failures = append(r.Failures, outcome{Test: what, Output: output, Machine: machine()})
}

// goTest runs go test, retries listed tests, and returns an error when anything
// failed.
func (p part) goTest(r *row) error {
	flakes, err := readFlakes(p.flakes)
	if err != nil {
		return err
	}
	t, err := p.tests(r, p.command[2:])
	if err != nil {
		return err
	}
	t.printSlowest(p.out)
	if p.ci {
		for _, f := range t.failures {
			again := func() (bool, error) {
				one, err := p.tests(r, f.alone(p.command[2:]))
				return err == nil && len(one.failures) == 0 && one.passed > 0, err
			}
			if err := f.retry(flakes, p.out, again); err != nil {
				return err
			}
		}
	}
	r.count(t)
	return t.verdict(p.ci)
}

// tests runs go test with the arguments and returns its tally.
func (p part) tests(r *row, args []string) (*tally, error) {
	cmd := exec.Command(p.command[0], append([]string{"test", "-json", "-count=1"}, args...)...)
	cmd.Dir = p.dir
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = cmd.Stdout // the go command's own messages stand between the events
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t, err := read(events, p.out)
	ended := cmd.Wait()
	r.addCPU(cmd)
	if err == nil && ended != nil && len(t.failures) == 0 {
		err = fmt.Errorf("go test: %w", ended)
	}
	return t, err
}
