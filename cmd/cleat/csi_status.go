package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/register"
)

const registrationCheck = "registration"

const statusTimeout = 10 * time.Second

// csiStatus combines /readyz and /status.
type csiStatus struct {
	Ready        bool              `json:"ready"`
	Checks       map[string]string `json:"checks"` // "ok" or the reason
	CSI          csi.Status        `json:"csi"`
	Registration *register.Status  `json:"registration,omitempty"`
}

// statusSocket is the socket of a driver's /status, for root only.
func statusSocket(stateDir string) (string, error) {
	dir, err := filepath.Abs(stateDir)
	return filepath.Join(dir, server.StatusName), err
}

func newCSIStatusCommand() *cobra.Command {
	var f session
	var stateDir, address string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running cleat csi and its registration",
		Long: `Shows whether a running cleat csi is ready, the conditions of its storage and the
calls in flight. With --registration-dir also whether the kubelet has registered
the driver, or why not. The command connects to a socket in --state-dir that only
root can use.`,
		Example: `  sudo cleat csi status
  sudo cleat csi status -o json | jq .registration.state`,
		Args: noArgs,
	}
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&stateDir, "state-dir", defaultState, "state directory of the driver (its --state-dir)")
		e.StringVar(&address, "metrics-address", "", "query the driver's --metrics-address instead")
	})
	f.timeout = statusTimeout
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		err := f.bind()
		if err == nil && address == "" {
			address, err = statusSocket(stateDir)
		}
		if err != nil {
			return err
		}
		var s csiStatus
		err = f.run(cmd, "querying the driver", func(ctx context.Context, notice func(string)) error {
			return f.untilServed(ctx, notice, nil, func(ctx context.Context) error { return queryStatus(ctx, address, &s) })
		})
		return f.printResult(cmd, s.table(), s, err)
	}
	return c
}

func queryStatus(ctx context.Context, address string, s *csiStatus) error {
	err := server.Ask(ctx, address, "/status", s)
	if err == nil {
		err = server.Ask(ctx, address, "/readyz", s)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cleat csi status must run as root: %w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no cleat csi serves its status at %s: start it, or set --state-dir to that of the driver: %w", address, err)
	}
	return err
}

func (s csiStatus) table() cli.Table {
	t := cli.Table{Header: []string{"DRIVER", s.CSI.Driver}}
	t.Add("Version", s.CSI.Version)
	t.Add("Node", s.CSI.Node)
	t.Add("Services", s.CSI.Services)
	t.Add("Pool", strings.TrimSpace(s.CSI.Engine+" "+s.CSI.Pool))
	t.Add("Ready", s.readiness())
	t.AddKnown("Storage", s.CSI.Error)
	for _, c := range s.CSI.Conditions {
		t.Add("Storage", fmt.Sprintf("%s %s: %s", c.Severity, c.Reason, c.Message))
	}
	for _, r := range s.CSI.Running {
		t.Add("Running", fmt.Sprintf("%s %s since %s", r.What, strings.Join(r.Keys, " "), cli.Cell(r.Since)))
	}
	if s.Registration == nil {
		t.Add("Registration", "disabled: the driver runs without --registration-dir")
		return t
	}
	r := s.Registration
	t.Add("Registration", fmt.Sprintf("%s since %s", r.State, cli.Cell(r.Since)))
	t.Add("Registration socket", r.Socket)
	t.Add("Announced", fmt.Sprintf("%s %s %s at %s", r.Type, r.Name, strings.Join(r.Versions, " "), r.Endpoint))
	t.Add("Last GetInfo", r.Asked)
	t.Add("Last notified", r.Notified)
	t.AddKnown("Host error", r.Error)
	t.AddKnown("Reason", r.Reason)
	return t
}

// readiness returns the failed checks. The registration has rows of its own.
func (s csiStatus) readiness() string {
	if s.Ready {
		return "yes"
	}
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(s.Checks)) {
		switch reason := s.Checks[name]; {
		case reason == "ok":
		case name == registrationCheck:
			failed = append(failed, "not registered")
		default:
			failed = append(failed, reason)
		}
	}
	return "no: " + strings.Join(failed, "; ")
}
