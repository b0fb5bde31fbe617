package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/demo"
	"github.com/cleatproject/cleat/volume/access"
)

// The test doubles of SNAP and of a node as make demo builds them.
const (
	doubleName     = "cleat-snap-double"
	nodeDoubleName = "cleat-node-double"
)

// demoFlags are the settings of cleat demo.
type demoFlags struct {
	dir    string
	size   cli.Size
	keep   bool
	remove string
	output string
	double string
	snap   string
	target string
	node   string
}

func newDemoCommand() *cobra.Command {
	f := demoFlags{size: demo.DefaultSize}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Walk volumes through their whole life, with real data, and check each step",
		Long: `Starts a host of plugins (cleat host) and a CSI driver (cleat csi) on a pool of
its own, finds the driver by its name, and does to volumes with real data what
an orchestrator would: create, attach, write, snapshot, restore, clone, expand,
changed blocks, group snapshot, health, thick and thin, kill -9 of the driver in
the middle of its work, detach, delete. After each step it looks whether the
promise holds: checksums, free space, blocks, mounts, loop devices, registration.

One chapter makes DPU devices with cleat dpu: block devices and a file system,
kill -9 of the plugin in the middle of its work, a
restart of SNAP. It runs against a test double of SNAP, a program of its own that
is looked for beside this one (make demo builds it), and is left out where there
is none. With --snap-socket it runs against the SNAP or SPDK process there, which
must see --dir at the same path; nothing is killed or restarted then.

Another has cleat sriov plugin and cleat sriov daemon offer SR-IOV functions: none
before the daemon answers for them, and none any more after its kill -9, while it
hangs, and while functions are changed. It runs on a machine of files with a double
of a kubelet, which are one more program beside this one; no function and no pod
of it is real.

The exit code is 0 only if every step held. Everything lives in one directory,
and nothing is left behind: not after a failure, where only the log of driver
and host stays, and not after Ctrl-C. It touches no other volume, pool or driver.

It needs root, loop devices, XFS, and room for the pool on the disk while it
runs, which is some seconds.`,
		Example: `  sudo cleat demo
  sudo cleat demo --dir /data/demo --size 8GiB
  sudo cleat demo --keep                        # then: cleat volume list ...
  sudo cleat demo --remove /var/tmp/cleat-demo-123
  sudo cleat demo --snap-socket /var/tmp/spdk.sock --snap-target 192.0.2.10:4420,nqn.2024-01.com.example:vol1
  sudo cleat demo -o json | jq '.steps[] | [.name, .seconds]'`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.dir, "dir", "", "new or empty directory to work in; a new one below /var/tmp without it")
	fs.Var(&f.size, "size", "size of the pool, at least "+cli.Size(demo.MinSize).String())
	fs.BoolVar(&f.keep, "keep", false, "leave driver and host running and the volumes attached, and tell how to go on by hand")
	fs.StringVar(&f.remove, "remove", "", "take away what --keep, or a demo that was killed, left in this directory, and do nothing else")
	fs.StringVarP(&f.output, "output", "o", "text", "text, or json: steps and timings as one document, and progress on stderr")
	fs.StringVar(&f.double, "snap-double", "", "program of the test double of SNAP; by default "+doubleName+" beside this program")
	fs.StringVar(&f.snap, "snap-socket", "", "UNIX socket of a SNAP or SPDK process to make DPU devices in, in place of the double")
	fs.StringVar(&f.target, "snap-target", "", "with --snap-socket: an NVMe/TCP subsystem with one namespace, as ADDRESS:PORT,NQN; its data is not touched")
	fs.StringVar(&f.node, "node-double", "", "program of the double of a node with SR-IOV functions and of its kubelet; by default "+nodeDoubleName+" beside this program")
	c.MarkFlagsMutuallyExclusive("snap-double", "snap-socket")
	c.MarkFlagsMutuallyExclusive("remove", "keep")
	c.MarkFlagsMutuallyExclusive("remove", "dir")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.output != "text" && f.output != "json" {
			return fmt.Errorf("--output %q: use text or json", f.output)
		}
		ctx, stop := interruptible(cmd.Context())
		defer stop()
		if f.remove != "" {
			if err := demo.Remove(ctx, f.remove); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "the demo in %s is taken away: volumes, driver, pool\n", f.remove)
			return err
		}
		return f.run(ctx, cmd)
	}
	return c
}

// interruptible ends with a signal that asks to stop; a second one ends the
// process at once. That nobody reads the output any more is no reason to die
// before all is cleaned up: writing then fails, no more.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ignoreBrokenPipes()
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // as it is below nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// ignoreBrokenPipes lets writing to a pipe fail that nobody reads any more,
// where the Go runtime would end the process.
func ignoreBrokenPipes() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }

func (f demoFlags) run(ctx context.Context, cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	progress := out
	if f.output == "json" {
		progress = cmd.ErrOrStderr()
	}
	dpu, err := f.dpu()
	if err != nil {
		return err
	}
	sriov, err := f.sriov(ctx)
	if err != nil {
		return err
	}
	report, err := demo.Run(ctx, demo.Config{
		DPU: dpu, SRIOV: sriov,
		Program: "/proc/self/exe", Command: os.Args[0], Dir: f.dir, Size: int64(f.size), Keep: f.keep,
		Progress: progress, Terminal: cli.IsTerminal(progress),
	})
	if err != nil && !errors.Is(err, demo.ErrFailed) {
		return err // nothing was begun
	}
	if f.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(report))
	}
	if printErr := report.Summary(out); printErr != nil || err == nil {
		return errors.Join(err, printErr)
	}
	if report.Failure != nil && report.Failure.Interrupted {
		return err
	}
	return demo.ErrFailed // the summary told why
}

// dpu settles with which SNAP the chapter on DPU devices is walked.
func (f demoFlags) dpu() (d demo.DPU, err error) {
	switch {
	case f.snap != "":
		if d.Socket, err = filepath.Abs(f.snap); err != nil {
			return d, fmt.Errorf("--snap-socket: %w", err)
		}
		d.Target, err = snapTarget(f.target)
		return d, err
	case f.target != "":
		return d, errors.New("--snap-target is for a SNAP process: name that with --snap-socket")
	}
	var missing string
	if d.Double, missing, err = findDouble("snap-double", f.double, doubleName); missing != "" {
		d.LeftOut = "there is no test double of SNAP at " + missing + " (make demo builds one; --snap-double and --snap-socket name another)"
	}
	return d, err
}

// sriov settles with which double of a node the chapter on SR-IOV functions is
// walked. It is left out, too, where the double cannot be one.
func (f demoFlags) sriov(ctx context.Context) (s demo.SRIOV, err error) {
	var missing string
	if s.Double, missing, err = findDouble("node-double", f.node, nodeDoubleName); missing != "" {
		s.LeftOut = "there is no double of a node at " + missing + " (make demo builds one; --node-double names another)"
	}
	if err != nil || s.Double == "" {
		return s, err
	}
	if os.Geteuid() != 0 { // the demo refuses by itself, and says why
		return s, nil
	}
	if said, err := exec.CommandContext(ctx, s.Double, "-probe").CombinedOutput(); err != nil {
		why := strings.TrimSpace(strings.TrimPrefix(string(said), "double:"))
		return demo.SRIOV{LeftOut: fmt.Sprintf("this machine lets no node be doubled: %s (%v)", cli.Plain(why), err)}, nil
	}
	return s, nil
}

// findDouble is the path of a double, which a flag or its place beside this
// program names, or where there is none.
func findDouble(flag, given, name string) (path, missing string, err error) {
	if given != "" {
		if err := unix.Access(given, unix.X_OK); err != nil {
			return "", "", fmt.Errorf("--%s %s: %w", flag, given, err)
		}
		path, err = filepath.Abs(given)
		return path, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if unix.Access(beside, unix.X_OK) != nil {
		return "", beside, nil
	}
	return beside, "", nil
}

// snapTarget reads ADDRESS:PORT,NQN; an empty text is no target.
func snapTarget(text string) (*access.NVMe, error) {
	if text == "" {
		return nil, nil
	}
	at, nqn, _ := strings.Cut(text, ",")
	path, err := netip.ParseAddrPort(at)
	if err != nil || access.CheckNQN(nqn) != nil {
		return nil, fmt.Errorf("--snap-target %q: write ADDRESS:PORT,NQN, as 192.0.2.10:4420,nqn.2024-01.com.example:vol1", text)
	}
	return &access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{path}, NQN: nqn}, nil
}
