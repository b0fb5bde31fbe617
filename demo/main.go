// Command cleat-demo shows what cleat promises on this machine. It starts
// cleat's servers, drives them through their clients as an orchestrator would,
// checks every step, and removes everything again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	gib = 1 << 30
	mib = 1 << 20

	minSize = 2 * gib // the smallest pool that holds all volumes of the demo
)

const usage = `Starts servers of cleat on this machine, drives them through their clients, and
checks after each step that the promise holds. Chapters:

  volumes  cleat host and cleat csi on a pool of its own: real data, loop devices,
           file systems; kill -9 of the driver in the middle of its work
  fence    cleat fence serve between two network namespaces: a client that writes
           over TCP is fenced, and admitted again
  dpu      cleat dpu against a test double of SNAP, or with --snap-socket in a SNAP
           or SPDK process, which must see --dir at the same path
  sriov    cleat sriov plugin and daemon against a double of a node and its kubelet

A chapter that this machine cannot run is left out, and the output says so. The
exit code is 0 only if every step held. Everything lives in one directory, and
nothing is left behind; after a failure the log stays. It needs root, loop
devices, XFS, and the programs that make demo builds beside this one.

  sudo bin/cleat-demo --dir /data/demo --size 8GiB
  sudo bin/cleat-demo --keep                    # then: cleat volume list ...
  sudo bin/cleat-demo --remove /var/tmp/cleat-demo-123
  sudo bin/cleat-demo --chapters fence,dpu -o json | jq '.steps[] | [.name, .seconds]'
`

// config is what the flags say.
type config struct {
	dir         string
	size        cli.Size
	keep, pause bool
	remove      string
	output      string
	chapters    []string
	snapSocket  string
	snapTarget  string
	target      *access.NVMe // snapTarget, read; nil: none
	programs    string       // directory of cleat and the doubles
	out         io.Writer    // of progress
	in          io.Reader
}

func chapterNames() []string { return []string{"volumes", "fence", "dpu", "sriov"} }

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return
	}
	if !errors.Is(err, errFailed) { // the report has the reason
		fmt.Fprintln(os.Stderr, "cleat-demo:", err)
	}
	os.Exit(1)
}

func run(args []string, in io.Reader, out, progress io.Writer) error {
	c := config{in: in, out: out}
	if err := c.parse(args, progress); err != nil {
		return err
	}
	if c.output == "json" {
		c.out = progress
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.programs = filepath.Dir(self)
	ctx, stop := cli.Interruptible(context.Background())
	defer stop()
	if c.remove != "" {
		if err := remove(ctx, c.remove); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "the demo in %s is removed: processes, volumes, pool\n", c.remove)
		return err
	}
	d, err := newDemo(c)
	if err != nil {
		return err
	}
	report := d.run(ctx)
	if c.output != "json" {
		return errors.Join(report.err(), report.print(out))
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return errors.Join(report.err(), e.Encode(report))
}

// parse reads the flags and refuses what cannot be.
func (c *config) parse(args []string, help io.Writer) error {
	c.size = 4 * gib
	fs := pflag.NewFlagSet("cleat-demo", pflag.ContinueOnError)
	fs.SetOutput(help)
	fs.Usage = func() { _, _ = fmt.Fprintf(help, "%s\nFlags:\n%s", usage, fs.FlagUsages()) }
	fs.StringVar(&c.dir, "dir", "", "new or empty directory to work in; a new one below /var/tmp without it")
	fs.Var(&c.size, "size", "size of the pool, at least "+cli.Size(minSize).String())
	fs.BoolVar(&c.keep, "keep", false, "leave host and driver running and the volumes attached, and say how to go on by hand")
	fs.BoolVar(&c.pause, "pause", false, "wait after each step for a line on standard input, to look around")
	fs.StringVar(&c.remove, "remove", "", "remove what --keep, or a demo that was killed, left in this directory, and do nothing else")
	fs.StringVarP(&c.output, "output", "o", "text", "text, or json: steps and timings as one document, and progress on stderr")
	fs.StringSliceVar(&c.chapters, "chapters", chapterNames(), "chapters to run")
	fs.StringVar(&c.snapSocket, "snap-socket", "", "UNIX socket of a SNAP or SPDK process to make DPU devices in, in place of the double")
	fs.StringVar(&c.snapTarget, "snap-target", "", "with --snap-socket: an NVMe/TCP subsystem with one namespace, as ADDRESS:PORT,NQN; its data is not touched")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if c.snapTarget != "" {
		at, nqn, _ := strings.Cut(c.snapTarget, ",")
		path, err := netip.ParseAddrPort(at)
		if err != nil || access.CheckNQN(nqn) != nil {
			return fmt.Errorf("--snap-target %q: write ADDRESS:PORT,NQN, as 192.0.2.10:4420,nqn.2024-01.com.example:vol1", c.snapTarget)
		}
		c.target = &access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{path}, NQN: nqn}
	}
	unknown := slices.DeleteFunc(slices.Clone(c.chapters), func(name string) bool { return slices.Contains(chapterNames(), name) })
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: there are only flags, see --help", fs.Arg(0))
	case c.output != "text" && c.output != "json":
		return fmt.Errorf("--output %q: use text or json", c.output)
	case c.size < minSize:
		return fmt.Errorf("--size %s is too small: the volumes need a pool of at least %s", c.size, cli.Size(minSize))
	case len(unknown) > 0:
		return fmt.Errorf("--chapters: no chapter %q; there are %s", unknown[0], strings.Join(chapterNames(), ", "))
	case c.remove != "" && (c.keep || c.dir != ""):
		return errors.New("--remove goes with neither --keep nor --dir")
	case c.keep && !slices.Contains(c.chapters, "volumes"):
		return errors.New("--keep leaves the servers of the chapter volumes, which --chapters leaves out")
	case c.snapSocket == "" && c.target != nil:
		return errors.New("--snap-target is for a SNAP process: name its socket with --snap-socket")
	}
	return nil
}
