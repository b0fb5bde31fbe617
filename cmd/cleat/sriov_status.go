package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

type sriovStatus struct {
	Plugin     string           `json:"plugin"`
	Version    string           `json:"version"`
	Extensions int              `json:"extensions"`
	Closed     gate.Closed      `json:"closed,omitempty"`    // reason by PCI address
	Withdrawn  bool             `json:"withdrawn,omitempty"` // the devices of Closed
	State      string           `json:"state"`
	Control    string           `json:"control"`
	Generation int64            `json:"generation"`
	UID        string           `json:"uid,omitempty"`
	Hash       string           `json:"config_hash,omitempty"`
	LeaseEnds  time.Time        `json:"lease_ends,omitzero"`
	HoldEnds   time.Time        `json:"hold_ends,omitzero"`
	Pools      int              `json:"pools"`
	Devices    int              `json:"devices"`
	Error      string           `json:"error,omitempty"`
	Resources  []sriovStatusRow `json:"resources"`
}

type sriovStatusRow struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Devices    int    `json:"devices"`
	Offered    int    `json:"offered"`
	Allocating int    `json:"allocating"`
	Kubelet    bool   `json:"kubelet_connected"`
	Error      string `json:"error,omitempty"`
}

func newSriovStatusCommand() *cobra.Command {
	var f session
	var socket, wait string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running device plugin and its config daemon",
		Long: `Queries a device plugin on its control socket: the devices offered to the kubelet,
the config daemon that has enabled them, and errors. Only a plugin with
--controlled-mode has that socket; plugins that serve only the published proposal
lack the call.

--wait repeats the query until the plugin is in a state, also while the socket does
not exist yet.`,
		Example: `  sudo cleat sriov status
  sudo cleat sriov status -o json | jq .resources
  sudo cleat sriov status --wait SERVING --timeout 1m`,
		Args: noArgs,
	}
	states := []string{string(gate.Initializing), string(gate.Serving), string(gate.Failed), string(gate.Stopping)}
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&socket, "control-socket", sriovControlSocket, "control socket of the plugin (its --control-socket)")
		e.StringVar(&wait, "wait", "", "wait until the plugin is in this state: "+strings.Join(states, ", "))
		e.DurationVar(&f.timeout, "timeout", 0, "time limit; 0 means none with --wait, and "+statusTimeout.String()+" without")
	})
	cli.Enumerate(c.Flags(), "wait", states...)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		switch {
		case wait == "":
			f.timeout = cmp.Or(f.timeout, statusTimeout)
		case !slices.Contains(states, wait):
			return fmt.Errorf("--wait %q is not a plugin state: use one of %s", wait, strings.Join(states, ", "))
		}
		if wait != "" {
			f.starting = noLimit
		}
		var s sriovStatus
		err := f.run(cmd, "querying the plugin", func(ctx context.Context, notice func(string)) error {
			again := func(err error) bool {
				return wait != "" && (errors.Is(err, errSriovState) || errors.Is(err, control.ErrNotServed) || errors.Is(err, errSriovLost))
			}
			err := f.untilServed(ctx, notice, again, func(ctx context.Context) (err error) {
				s, err = querySriovStatus(ctx, socket)
				if err == nil && wait != "" && s.State != wait {
					err = fmt.Errorf("%w %s", errSriovState, strings.TrimSpace(s.State+" "+s.Error))
				}
				return err
			})
			if wait != "" && errors.Is(err, ctx.Err()) && ctx.Err() != nil {
				return fmt.Errorf("timed out waiting for the plugin at %s to be %s: %w", socket, wait, err)
			}
			return explainSriov(socket, err)
		})
		return f.printResult(cmd, s.table(time.Now()), s, err)
	}
	return c
}

var (
	errSriovState = errors.New("plugin is in state") // not the state of --wait
	errSriovLost  = errors.New("connection to plugin lost")
)

func querySriovStatus(ctx context.Context, socket string) (sriovStatus, error) {
	c, err := control.Dial(ctx, socket)
	if err != nil {
		return sriovStatus{}, err
	}
	defer func() { _ = c.Close() }()
	now, err := c.Status(ctx)
	if _, answered := errors.AsType[*gate.End](err); err != nil && !answered {
		err = fmt.Errorf("%w: %w", errSriovLost, err)
	}
	if err != nil {
		return sriovStatus{}, err
	}
	v, err := c.Version(ctx)
	if end, answered := errors.AsType[*gate.End](err); answered && end.Code == codes.Unimplemented {
		err = nil // GetVersion is optional
	}
	return newSriovStatus(now, v), err
}

func explainSriov(socket string, err error) error {
	end, answered := errors.AsType[*gate.End](err)
	switch {
	case errors.Is(err, control.ErrNotServed):
		return fmt.Errorf("no plugin serves the control socket %s: it is not running, runs without --controlled-mode, or has another --control-socket: %w", socket, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("querying the plugin at %s requires root: %w", socket, err)
	case answered && end.Code == codes.Unimplemented:
		return fmt.Errorf("the plugin at %s does not support GetStatus: it serves only the published proposal, which reports status only to the config daemon: %w", socket, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the process that listens at %s does not respond; it might hang, or not be a device plugin: %w", socket, err)
	case errors.Is(err, errSriovLost):
		return fmt.Errorf("the process that listens at %s might not be a device plugin, or refuses this user: %w", socket, err)
	}
	return err
}

func newSriovStatus(s gate.Status, v control.Version) sriovStatus {
	d := sriovStatus{
		Plugin: v.Name, Version: v.Version, Extensions: v.Extensions, State: cmp.Or(string(s.State), "UNKNOWN"), Control: string(s.Holding),
		Generation: s.Generation, UID: s.UID, Hash: s.Hash, LeaseEnds: s.LeaseEnds, HoldEnds: s.HoldEnds, Closed: s.Closed, Withdrawn: s.Withdrawn,
		Pools: s.Pools, Devices: s.Devices, Error: s.Error, Resources: []sriovStatusRow{},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		r := s.Resources[name]
		d.Resources = append(d.Resources, sriovStatusRow{name, string(r.Phase), r.Devices, r.Offered, r.Allocating, r.Streaming, r.Error})
	}
	return d
}

func (s sriovStatus) table(now time.Time) cli.Table {
	t := cli.Table{Header: []string{"PLUGIN", cmp.Or(strings.TrimSpace(s.Plugin+" "+s.Version), "unknown")}}
	t.Add("State", s.State)
	t.Add("Controlled by", s.holder(now))
	t.Add("Offers", fmt.Sprintf("%s of %s", count(s.Devices, "device"), count(s.Pools, "resource")))
	t.Add("Configuration", s.Hash)
	t.AddKnown("Error", s.Error)
	for _, address := range slices.Sorted(maps.Keys(s.Closed)) {
		t.Add("Closed "+address, cmp.Or(s.Closed[address], "no reason given"))
	}
	if len(s.Closed) > 0 && !s.Withdrawn {
		t.Add("Closing", "in progress")
	}
	for _, r := range s.Resources {
		text := fmt.Sprintf("%s: %d of %s", r.State, r.Offered, count(r.Devices, "device"))
		if r.Allocating > 0 {
			text += "; " + count(r.Allocating, "allocation") + " in flight"
		}
		if !r.Kubelet {
			text += "; no kubelet connected"
		}
		if r.Error != "" {
			text += "; " + r.Error
		}
		t.Add(r.Name, text)
	}
	return t
}

func (s sriovStatus) holder(now time.Time) string {
	who := fmt.Sprintf("generation %d", s.Generation)
	if s.UID != "" {
		who += " of node state " + s.UID
	}
	left := func(t time.Time) string { return t.Sub(now).Round(100 * time.Millisecond).String() }
	switch gate.HolderState(s.Control) {
	case gate.NotControlled:
		return "none: not in controlled mode"
	case gate.Waiting:
		return "none: waiting for a config daemon"
	case gate.Lost:
		if s.HoldEnds.IsZero() {
			return "none: " + who + " lost, hold time running"
		}
		return fmt.Sprintf("none: %s lost, hold time ends in %s", who, left(s.HoldEnds))
	case gate.Live:
		if !s.LeaseEnds.IsZero() {
			who += ", lease ends in " + left(s.LeaseEnds)
		}
		return "config daemon, " + who
	}
	return "unknown"
}
