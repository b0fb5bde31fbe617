// Package cluster brings up a whole Kubernetes on this machine, in namespaces of
// its own, from unmodified programs: etcd, containerd, the control plane, a
// kubelet and a service proxy. It has one node, and more when a test adds them.
// Nothing of it is seen outside, and nothing of it is left: the processes live in
// a PID namespace, whose end is theirs.
//
// A test binary enters it through Main, in three stages of the same program:
//
//	outside  builds the programs, makes the state directory, sweeps up at the end
//	init     is process 1 of the namespaces: lays mounts and network, reaps
//	inside   starts the cluster and runs the tests
//
// A node that a test adds goes through the last two stages in namespaces of its
// own; the last one starts what a node runs.
//
// It needs root, not CAP_SYS_RESOURCE, and either version of cgroups (version 2
// has not been run yet).
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/kubernetes/programs"
)

// stageVariable carries what a stage hands to the next.
const stageVariable = "CLEAT_CLUSTER_STAGE"

// Setup is what a test binary adds to a cluster.
type Setup struct {
	// Programs are the names of programs to build beside those of the cluster
	// itself (package programs).
	Programs []string
	// Outside, if any, runs before the namespaces are made, where the network
	// is still there: it makes images and whatever else the tests need below dir.
	Outside func(ctx context.Context, dir string, set programs.Set) error
	// Inside runs when the cluster is up, before the tests.
	Inside func(ctx context.Context, c *Cluster) error
	// Finish runs after the tests, before the cluster ends; what it finds wrong
	// fails the run.
	Finish func(ctx context.Context, c *Cluster) error
}

// site is what the stages share.
type site struct {
	Stage    string
	Node     int    // number of the node whose namespaces these are
	Dir      string // state; short, as sockets lie below it
	Programs string
	Cgroup   string // name of the group of all of the cluster's, below each hierarchy's root
}

// Main runs the tests of m inside a cluster and ends the process.
func Main(m *testing.M, setup Setup) {
	s, err := handedOver()
	switch {
	case err != nil:
	case s == nil:
		var code int
		if code, err = outside(setup); err == nil {
			os.Exit(code)
		}
	case s.Stage == "init":
		var code int
		if code, err = initialise(s); err == nil {
			os.Exit(code)
		}
	case s.Node > 1:
		err = runNode(context.Background(), s)
	default:
		os.Exit(inside(m, s, setup))
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	os.Exit(1)
}

func handedOver() (*site, error) {
	text := os.Getenv(stageVariable)
	if text == "" {
		return nil, nil
	}
	s := new(site)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("what %s hands over: %w", stageVariable, err)
	}
	return s, nil
}

func outside(setup Setup) (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("it makes namespaces, mounts and cgroups: run it as root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	set, err := programs.Build(ctx, os.Stderr, append(own(), setup.Programs...)...)
	if err != nil {
		return 0, err
	}
	slot, err := takeSlot(ctx)
	if err != nil {
		return 0, err
	}
	defer slot.Close()
	dir, err := os.MkdirTemp("", "ck")
	if err != nil {
		return 0, err
	}
	s := &site{Stage: "init", Node: 1, Dir: dir, Programs: set.Dir, Cgroup: "cleat-" + filepath.Base(dir)}
	left, err := lookBefore(s)
	if err != nil {
		return 0, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if sweepErr := left.sweep(); sweepErr != nil {
			err = errors.Join(err, sweepErr)
		}
	}()
	if setup.Outside != nil {
		if err := setup.Outside(ctx, dir, set); err != nil {
			return 0, err
		}
	}
	return enter(ctx, s)
}

// namespaces are those that each node has of its own.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS

// enter runs this program again as process 1 of new namespaces and returns its
// exit code. They end with this process, however it ends.
func enter(ctx context.Context, s *site) (int, error) {
	cmd, err := again(s)
	if err != nil {
		return 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// Process 1 passes it on, so that the tests clean up.
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err = <-done:
		case <-time.After(2 * time.Minute):
			cmd.Process.Kill()
			err = <-done
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if exit.Exited() {
			return exit.ExitCode(), nil
		}
		return 0, fmt.Errorf("the namespaces ended: %w", err)
	}
	return 0, err
}

// again is this program in the next stage.
func again(s *site) (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVariable+"="+string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	return cmd, nil
}

// initialise is process 1: it lays out the namespaces, starts the last stage,
// and reaps whatever is orphaned until that has ended.
func initialise(s *site) (int, error) {
	if err := s.joinCgroup(os.Getpid()); err != nil {
		return 0, err
	}
	if err := s.layOut(); err != nil {
		return 0, err
	}
	s.Stage = "inside"
	cmd, err := again(s)
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		for sig := range signals {
			cmd.Process.Signal(sig)
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR) || pid != cmd.Process.Pid && err == nil:
		case err != nil:
			return 0, fmt.Errorf("wait for the tests: %w", err)
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// inside starts the cluster, runs the tests and takes the cluster down.
func inside(m *testing.M, s *site, setup Setup) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	c, err := up(ctx, s)
	if c != nil {
		defer func() {
			if code != 0 {
				c.saveLogs(os.Stderr)
			}
			if err := c.Down(); err != nil {
				fmt.Fprintln(os.Stderr, "cluster: down:", err)
				code = 1
			}
		}()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster: up:", err)
		return 1
	}
	fmt.Printf("cluster: up after %.1f s\n", time.Since(began).Seconds())
	if setup.Inside != nil {
		if err := setup.Inside(ctx, c); err != nil {
			fmt.Fprintln(os.Stderr, "cluster: set up:", err)
			code = 1
		}
	}
	if code == 0 {
		code = runUntil(ctx, m)
	}
	if os.Getenv("CLEAT_CLUSTER_HOLD") != "" {
		hold(ctx, c, os.Stderr)
	}
	if setup.Finish != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		defer cancel()
		if err := setup.Finish(ending, c); err != nil {
			fmt.Fprintln(os.Stderr, "cluster: finish:", err)
			code = 1
		}
	}
	return code
}

// runUntil runs the tests, and leaves them where they are when ctx ends first:
// what they had is then given back as far as it can be.
func runUntil(ctx context.Context, m *testing.M) int {
	code := make(chan int, 1)
	go func() { code <- m.Run() }()
	select {
	case c := <-code:
		return c
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "cluster: interrupted")
		return 1
	}
}

// hold keeps the cluster for a person to look around in.
func hold(ctx context.Context, c *Cluster, w io.Writer) {
	fmt.Fprintf(w, "cluster: held. Enter it from outside with\n"+
		"  nsenter -t $(pgrep -f -o 'etcd --data-dir %s') -m -n -p env KUBECONFIG=%s PATH=%s:$PATH bash\n"+
		"and interrupt this to go on.\n", filepath.Join(c.Dir, "etcd"), c.Kubeconfig, c.Programs.Dir)
	<-ctx.Done()
}
