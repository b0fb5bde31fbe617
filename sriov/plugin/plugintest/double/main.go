// Command double is a fake node for demonstrations: a sysfs tree with one
// adapter that reacts to sriov_numvfs, and an in-memory kubelet with
// PodResources. It is not part of the product.
//
//	double -dir /tmp/node -socket /tmp/node/node.sock
//
// It creates sys, dev and kubelet below the directory. It lives in a network
// namespace with a network device; join the namespace to use it.
//
// Commands and answers on the socket are JSON lines; see order and answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside: the process already runs in its namespace.
const inside = "-inside"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := start(ctx, os.Args, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "double:", err)
		os.Exit(1)
	}
}

// start restarts the program in a network namespace.
func start(ctx context.Context, argv []string, out io.Writer) error {
	if n := len(argv) - 1; n > 0 && argv[n] == inside {
		return run(ctx, argv[1:n], out)
	}
	if _, err := parse(argv[1:], out); err != nil {
		return err
	}
	runtime.LockOSThread() // a namespace is a thread's until exec
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace cannot be made: %w", err)
	}
	return unix.Exec("/proc/self/exe", append(slices.Clone(argv), inside), os.Environ())
}

type settings struct {
	dir, socket string
	probe       bool
}

func parse(argv []string, out io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("double", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&s.dir, "dir", "", "the directory to work in")
	flags.StringVar(&s.socket, "socket", "", "the socket to take orders on")
	flags.BoolVar(&s.probe, "probe", false, "only check whether the kernel supports the node")
	if err := flags.Parse(argv); err != nil {
		return s, err
	}
	if flags.NArg() > 0 || !s.probe && (!filepath.IsAbs(s.dir) || !filepath.IsAbs(s.socket)) {
		return s, fmt.Errorf("want -dir DIR -socket PATH, both absolute, or -probe, and no words beside the flags, not %q", argv)
	}
	return s, nil
}

func run(ctx context.Context, argv []string, out io.Writer) (err error) {
	s, err := parse(argv, out)
	if err != nil {
		return err
	}
	if err := makeLink(netdev); err != nil || s.probe {
		return err
	}
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	n, err := newNode(s.dir, end)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	o, err := listen(serving, s.socket, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	fmt.Fprintf(out, "a double of a node takes orders on %s: its machine is files, its kubelet runs no pods\n", s.socket)
	<-serving.Done()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(serving)
}
