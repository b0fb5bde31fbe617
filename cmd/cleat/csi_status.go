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

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/volume"
)

// registrationCheck is the registration's name among the checks of /readyz.
const registrationCheck = "registration"

// statusTimeout is how long a server may take to answer its status.
const statusTimeout = 10 * time.Second

// driverStatus is the driver's part of /status.
type driverStatus struct {
	Driver     string             `json:"driver"`
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	Services   string             `json:"services"`
	Engine     string             `json:"engine"`
	Pool       string             `json:"pool"`
	Running    []op.Running       `json:"running"`
	Conditions []volume.Condition `json:"conditions"`
	Error      string             `json:"error,omitempty"` // why the conditions are not known
}

// csiStatus is the document of cleat csi status: /readyz and /status together.
type csiStatus struct {
	Ready        bool              `json:"ready"`
	Checks       map[string]string `json:"checks"` // "ok" or the reason
	CSI          driverStatus      `json:"csi"`
	Registration *register.Status  `json:"registration,omitempty"`
}

// statusSocket is where a driver serves /status, to root alone.
func statusSocket(stateDir string) (string, error) {
	dir, err := filepath.Abs(stateDir)
	return filepath.Join(dir, "status.sock"), err
}

func newCSIStatusCommand() *cobra.Command {
	var f session
	var stateDir, address string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running cleat csi and its registration",
		Long: `Asks a running cleat csi whether it is ready, for the conditions of its storage
and the calls that run, and with --registration-dir whether the kubelet has
registered it, or why not. The socket for that in its --state-dir is for root
only.`,
		Example: `  sudo cleat csi status
  sudo cleat csi status -o json | jq .registration.state`,
		Args: exactlyNone,
	}
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&stateDir, "state-dir", defaultState, "the --state-dir of the driver")
		e.StringVar(&address, "metrics-address", "", "ask at the driver's --metrics-address instead")
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
		err = f.run(cmd, "asking the driver", func(ctx context.Context, _ func(string)) error {
			return askStatus(ctx, address, &s)
		})
		return f.answer(cmd, s.table(), s, err)
	}
	return c
}

func askStatus(ctx context.Context, address string, s *csiStatus) error {
	err := server.Ask(ctx, address, "/status", s)
	if err == nil {
		err = server.Ask(ctx, address, "/readyz", s)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may ask cleat csi how it does: %w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no cleat csi tells of itself at %s: start it, or give the --state-dir that it runs with: %w", address, err)
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
		t.Add("Registration", "none: it runs without --registration-dir")
		return t
	}
	r := s.Registration
	t.Add("Registration", fmt.Sprintf("%s since %s", r.State, cli.Cell(r.Since)))
	t.Add("Its socket", r.Socket)
	t.Add("Announced", fmt.Sprintf("%s %s %s at %s", r.Type, r.Name, strings.Join(r.Versions, " "), r.Endpoint))
	t.Add("Last asked", r.Asked)
	t.Add("Last told", r.Told)
	t.AddKnown("Host's words", r.Error)
	t.AddKnown("Reason", r.Reason)
	return t
}

// readiness names the checks that fail, and why; the registration has lines of its
// own.
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
