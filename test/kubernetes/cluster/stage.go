// Package cluster runs a complete Kubernetes on this machine, in namespaces of
// its own, from unmodified programs: etcd, containerd, the control plane, a
// kubelet and a service proxy. It has one node; tests can add more. Nothing is
// visible outside, and nothing is left over: all processes end with their PID
// namespace.
//
// A test binary starts it through Main, which runs the binary in three stages:
//
//	outside  builds the programs, creates the state directory, restores the machine
//	init     process 1 of the namespaces: sets up mounts and network, reaps
//	inside   starts the cluster and runs the tests
//
// An additional node runs the last two stages in namespaces of its own; the
// last one starts the processes of a node.
//
// It needs root, but not CAP_SYS_RESOURCE, and cgroups version 1 or 2 (version
// 2 is untested).
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

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/kubernetes/programs"
)

// stageVariable passes the site to the next stage.
const stageVariable = "CLEAT_CLUSTER_STAGE"

// Setup configures a test binary's cluster.
type Setup struct {
	// Programs are the programs to build in addition to basePrograms (package
	// programs).
	Programs []string
	// Outside, if set, runs before the namespaces are created, where the
	// network is available: it creates images and other inputs of the tests
	// below dir.
	Outside func(ctx context.Context, dir string, set programs.Set) error
	// Inside runs after the cluster is up, before the tests.
	Inside func(ctx context.Context, c *Cluster) error
	// Finish runs after the tests, before the cluster ends; its error fails the
	// run.
	Finish func(ctx context.Context, c *Cluster) error
}

// site is the state shared by the stages.
type site struct {
	Stage    string
	Node     int    // number of this stage's node
	Dir      string // state; a short path, since it has sockets
	Programs string
	Cgroup   string // name of the cluster's group below each hierarchy's root
}

// Main runs the tests of m inside a cluster and ends the process.
func Main(m *testing.M, setup Setup) {
	kernelcall.Main()
	s, err := siteFromEnvironment()
	switch {
	case err != nil:
	case s == nil:
		var code int
		if code, err = outside(setup); err == nil {
			os.Exit(code)
		}
	case s.Stage == "init":
		var code int
		if code, err = runInit(s); err == nil {
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

func siteFromEnvironment() (*site, error) {
	text := os.Getenv(stageVariable)
	if text == "" {
		return nil, nil
	}
	s := new(site)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("parse %s: %w", stageVariable, err)
	}
	return s, nil
}

func outside(setup Setup) (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("the tests create namespaces, mounts and cgroups: run them as root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	set, err := programs.Build(ctx, os.Stderr, append(basePrograms(), setup.Programs...)...)
	if err != nil {
		return 0, err
	}
	slot, err := acquireSlot(ctx)
	if err != nil {
		return 0, err
	}
	defer slot.Close()
	dir, err := os.MkdirTemp("", "ck")
	if err != nil {
		return 0, err
	}
	s := &site{Stage: "init", Node: 1, Dir: dir, Programs: set.Dir, Cgroup: "cleat-" + filepath.Base(dir)}
	left, err := recordState(s)
	if err != nil {
		return 0, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if restoreErr := left.restore(); restoreErr != nil {
			err = errors.Join(err, restoreErr)
		}
	}()
	if setup.Outside != nil {
		began := time.Now()
		if err := setup.Outside(ctx, dir, set); err != nil {
			return 0, err
		}
		fmt.Printf("cluster: images made in %.1f s\n", time.Since(began).Seconds())
	}
	return enter(ctx, s)
}

// namespaces are the namespaces that each node has.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS

// enter runs this program as process 1 of new namespaces and returns its exit
// code. The namespaces end with this process.
func enter(ctx context.Context, s *site) (int, error) {
	cmd, err := reexec(s)
	if err != nil {
		return 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("create namespaces: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// Process 1 forwards the signal, so that the tests clean up.
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

// reexec returns the command for this program in the next stage.
func reexec(s *site) (*exec.Cmd, error) {
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

// runInit is process 1: it sets up the namespaces, starts the last stage, and
// reaps orphans until the last stage has ended.
func runInit(s *site) (int, error) {
	if err := s.joinCgroup(os.Getpid()); err != nil {
		return 0, err
	}
	if err := s.setUpNamespaces(); err != nil {
		return 0, err
	}
	s.Stage = "inside"
	cmd, err := reexec(s)
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
		began := time.Now()
		if err := setup.Inside(ctx, c); err != nil {
			fmt.Fprintln(os.Stderr, "cluster: set up:", err)
			code = 1
		}
		fmt.Printf("cluster: set up in %.1f s\n", time.Since(began).Seconds())
	}
	if code == 0 {
		code = runTests(ctx, m)
	}
	if os.Getenv("CLEAT_CLUSTER_HOLD") != "" {
		keepRunning(ctx, c, os.Stderr)
	}
	if setup.Finish != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*waitTimeout)
		defer cancel()
		began := time.Now()
		if err := setup.Finish(ending, c); err != nil {
			fmt.Fprintln(os.Stderr, "cluster: finish:", err)
			code = 1
		}
		fmt.Printf("cluster: finished in %.1f s\n", time.Since(began).Seconds())
	}
	return code
}

// runTests runs the tests and abandons them when ctx ends; the cluster is then
// cleaned up as far as possible.
func runTests(ctx context.Context, m *testing.M) int {
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

// keepRunning keeps the cluster until an interrupt, for debugging.
func keepRunning(ctx context.Context, c *Cluster, w io.Writer) {
	fmt.Fprintf(w, "cluster: kept running. Enter it with\n"+
		"  nsenter -t $(pgrep -f -o 'etcd --data-dir %s') -m -n -p env KUBECONFIG=%s PATH=%s:$PATH bash\n"+
		"and interrupt the tests to continue.\n", filepath.Join(c.Dir, "etcd"), c.Kubeconfig, c.Programs.Dir)
	<-ctx.Done()
}
