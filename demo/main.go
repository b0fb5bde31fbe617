// Command cleat-demo demonstrates cleat on this machine: it starts cleat's
// servers, calls them through their clients like an orchestrator, checks every
// step, and removes everything again.
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
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	gib = 1 << 30
	mib = 1 << 20

	minSize = 2 * gib // smallest pool for all volumes of the demo
)

const usage = `Demo of cleat: starts its servers on this machine, calls them through their
clients, and checks every step. Chapters:

  volumes  cleat host and cleat csi on a new pool: real data, loop devices and file
           systems; kill -9 of the driver during calls
  fence    cleat fence serve between two network namespaces: a client that writes
           over TCP is fenced and unfenced
  dpu      cleat dpu against a test double of SNAP, or with --snap-socket in a SNAP
           or SPDK process, which must see --dir at the same path
  sriov    cleat sriov plugin and daemon against a double of a node and its kubelet

A chapter that this machine cannot run is left out, and the output says so. The
exit code is 0 only if every step passed. All files are in one directory, and
nothing is left over; after a failure the log stays. The demo needs root, loop
devices, XFS, and the programs that make demo builds next to it.

  sudo bin/cleat-demo --dir /data/demo --size 8GiB
  sudo bin/cleat-demo --keep                    # then: cleat volume list ...
  sudo bin/cleat-demo --remove /var/tmp/cleat-demo-123
  sudo bin/cleat-demo --chapters fence,dpu -o json | jq '.steps[] | [.name, .seconds]'
`

// config holds the flags.
type config struct {
	dir         string
	size        cli.Size
	keep, pause bool
	remove      string
	output      string
	chapters    []string
	snapSocket  string
	snapTarget  string
	target      *access.NVMe // parsed snapTarget; nil: none
	programs    string       // directory of cleat and the doubles
	out         io.Writer    // of progress
	in          io.Reader
}

func chapterNames() []string { return []string{"volumes", "fence", "dpu", "sriov"} }

func main() {
	kernelcall.Main()
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
		_, err := fmt.Fprintf(out, "removed the demo in %s: processes, volumes, pool\n", c.remove)
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

// parse parses and checks the flags.
func (c *config) parse(args []string, help io.Writer) error {
	c.size = 4 * gib
	fs := pflag.NewFlagSet("cleat-demo", pflag.ContinueOnError)
	fs.SetOutput(help)
	fs.Usage = func() { _, _ = fmt.Fprintf(help, "%s\nFlags:\n%s", usage, fs.FlagUsages()) }
	fs.StringVar(&c.dir, "dir", "", "new or empty directory to work in (default: a new one below /var/tmp)")
	fs.Var(&c.size, "size", "size of the pool, at least "+cli.Size(minSize).String())
	fs.BoolVar(&c.keep, "keep", false, "leave host and driver running and the volumes attached, and print commands to try")
	fs.BoolVar(&c.pause, "pause", false, "wait after each step for a line on standard input")
	fs.StringVar(&c.remove, "remove", "", "only remove what --keep or a killed demo left in this directory")
	fs.StringVarP(&c.output, "output", "o", "text", "text, or json: one document of steps and timings, progress on stderr")
	fs.StringSliceVar(&c.chapters, "chapters", chapterNames(), "chapters to run")
	fs.StringVar(&c.snapSocket, "snap-socket", "", "UNIX socket of a SNAP or SPDK process to create DPU devices in, instead of the double")
	fs.StringVar(&c.snapTarget, "snap-target", "", "with --snap-socket: an NVMe/TCP subsystem with one namespace, as ADDRESS:PORT,NQN; its data is not changed")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if c.snapTarget != "" {
		at, nqn, _ := strings.Cut(c.snapTarget, ",")
		path, err := netip.ParseAddrPort(at)
		if err != nil || access.CheckNQN(nqn) != nil {
			return fmt.Errorf("--snap-target %q: write ADDRESS:PORT,NQN, such as 192.0.2.10:4420,nqn.2024-01.com.example:vol1", c.snapTarget)
		}
		c.target = &access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{path}, NQN: nqn}
	}
	unknown := slices.DeleteFunc(slices.Clone(c.chapters), func(name string) bool { return slices.Contains(chapterNames(), name) })
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: cleat-demo has only flags, see --help", fs.Arg(0))
	case c.output != "text" && c.output != "json":
		return fmt.Errorf("--output %q: use text or json", c.output)
	case c.size < minSize:
		return fmt.Errorf("--size %s is too small: the volumes need a pool of at least %s", c.size, cli.Size(minSize))
	case len(unknown) > 0:
		return fmt.Errorf("--chapters: unknown chapter %q, use %s", unknown[0], strings.Join(chapterNames(), ", "))
	case c.remove != "" && (c.keep || c.dir != ""):
		return errors.New("--remove cannot be combined with --keep or --dir")
	case c.keep && !slices.Contains(c.chapters, "volumes"):
		return errors.New("--keep needs the chapter volumes, which --chapters excludes")
	case c.snapSocket == "" && c.target != nil:
		return errors.New("--snap-target needs the socket of a SNAP process: set --snap-socket")
	}
	return nil
}
