package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/volume"
)

// registrationCheck is the registration's name among the checks of /readyz.
const registrationCheck = "registration"

// statusBound is how long a driver may take to tell of itself.
const statusBound = 10 * time.Second

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
	Error      string             `json:"error,omitempty"` // why all this is not told
}

// csiStatus is what cleat csi status prints: /readyz and /status together.
type csiStatus struct {
	Ready        bool              `json:"ready"`
	Checks       map[string]string `json:"checks"` // "ok" or the reason
	CSI          driverStatus      `json:"csi"`
	Registration *register.Status  `json:"registration,omitempty"`
}

// statusSocket is where a driver tells of itself, to root alone.
func statusSocket(stateDir string) (string, error) {
	dir, err := filepath.Abs(stateDir)
	return filepath.Join(dir, "status.sock"), err
}

func newCSIStatusCommand() *cobra.Command {
	var stateDir, address string
	format := cli.FormatTable
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how a running cleat csi does, and what became of its registration",
		Long: `Asks a running cleat csi how it does: whether it is ready, what is wrong with its
storage, what it is doing, and with --registration-dir whether the kubelet has
registered it, or why not. It is asked on a socket in its --state-dir, which
only root can use.`,
		Example: `  sudo cleat csi status
  sudo cleat csi status -o json | jq .registration.state`,
		Args: exactlyNone,
	}
	fs := c.Flags()
	fs.StringVar(&stateDir, "state-dir", defaultState, "the --state-dir of the driver")
	fs.StringVar(&address, "metrics-address", "", "ask at the driver's --metrics-address instead")
	fs.VarP(&format, "output", "o", "table, json or yaml")
	cli.DescribeEnv(fs)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(fs, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		if address == "" {
			var err error
			if address, err = statusSocket(stateDir); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), statusBound)
		defer cancel()
		s, err := askStatus(ctx, address)
		if err != nil {
			return err
		}
		return cli.Print(cmd.OutOrStdout(), format, s.table(), s)
	}
	return c
}

func askStatus(ctx context.Context, address string) (csiStatus, error) {
	var s csiStatus
	err := server.Ask(ctx, address, "/status", &s)
	if err == nil {
		err = server.Ask(ctx, address, "/readyz", &s)
	}
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, fs.ErrPermission):
		return s, fmt.Errorf("only root may ask cleat csi how it does: %w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return s, fmt.Errorf("no cleat csi tells of itself at %s: start it, or give the --state-dir that it runs with: %w", address, err)
	}
	return s, err
}

// table is for people: what is wrong stands where it is looked for.
func (s csiStatus) table() cli.Table {
	t := cli.Table{Header: []string{"DRIVER", dash(s.CSI.Driver)}}
	add := func(what, value string) { t.Rows = append(t.Rows, []string{what, value}) }
	add("Version", dash(s.CSI.Version))
	add("Node", dash(s.CSI.Node))
	add("Services", dash(s.CSI.Services))
	add("Pool", dash(strings.TrimSpace(s.CSI.Engine+" "+s.CSI.Pool)))
	add("Ready", s.readiness())
	if s.CSI.Error != "" {
		add("Storage", s.CSI.Error)
	}
	for _, c := range s.CSI.Conditions {
		add("Storage", fmt.Sprintf("%s %s: %s", c.Severity, c.Reason, c.Message))
	}
	for _, r := range s.CSI.Running {
		add("Running", fmt.Sprintf("%s %s since %s", r.What, strings.Join(r.Keys, " "), moment(r.Since)))
	}
	r := s.Registration
	if r == nil {
		add("Registration", "none: it runs without --registration-dir")
	} else {
		add("Registration", fmt.Sprintf("%s since %s", r.State, moment(r.Since)))
		add("Its socket", r.Socket)
		add("Announced", fmt.Sprintf("%s %s %s at %s", r.Type, r.Name, strings.Join(r.Versions, " "), r.Endpoint))
		add("Last asked", moment(r.Asked))
		add("Last told", moment(r.Told))
		if r.Error != "" {
			add("Host's words", r.Error)
		}
		if r.Reason != "" {
			add("Reason", r.Reason)
		}
	}
	return t
}

// readiness names the checks that fail, and why; what the registration says has
// lines of its own.
func (s csiStatus) readiness() string {
	if s.Ready {
		return "yes"
	}
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(s.Checks)) {
		switch said := s.Checks[name]; {
		case said == "ok":
		case name == registrationCheck:
			failed = append(failed, "not registered")
		default:
			failed = append(failed, said)
		}
	}
	return "no: " + strings.Join(failed, "; ")
}
