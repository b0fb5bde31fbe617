// Command mounter performs one mount operation of package hostfs in a guest.
// Its argument is a Job in JSON, its output an Answer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cleatproject/cleat/dpu/hostfs"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// Job is an operation.
type Job struct {
	Do       string // mount, mounted or unmount
	Name     string
	Spec     plan.MountSpec
	Dir      string
	KeyDir   string
	CephDir  string
	Deadline time.Duration
}

// Answer is the result of a Job.
type Answer struct {
	Error   string
	Kind    errs.Kind
	Mounted bool
	Took    time.Duration
	Log     string
}

func main() {
	kernelcall.Main()
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx := context.Background()
	if len(os.Args) == 2 && os.Args[1] == hostfs.HelperCommand {
		return hostfs.RunHelper(ctx, os.Stdin, os.Stdout)
	}
	var j Job
	if err := json.Unmarshal([]byte(os.Args[1]), &j); err != nil {
		return err
	}
	var log strings.Builder
	m, err := hostfs.Open(hostfs.Config{
		Dir: j.Dir, KeyDir: j.KeyDir, CephDir: j.CephDir, Deadline: j.Deadline,
		Helper: []string{"/proc/self/exe", hostfs.HelperCommand}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		return err
	}
	var a Answer
	begun := time.Now()
	switch j.Do {
	case "mount":
		err = m.Mount(ctx, j.Name, j.Spec)
	case "mounted":
		a.Mounted, err = m.Mounted(ctx, j.Name, j.Spec)
	case "unmount":
		err = m.Unmount(ctx, j.Name)
	default:
		return fmt.Errorf("unknown operation %q", j.Do)
	}
	a.Took, a.Log = time.Since(begun), log.String()
	if err != nil {
		a.Error, a.Kind = err.Error(), errs.KindOf(err)
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}
