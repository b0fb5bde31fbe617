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

// sriovStatus is the document of cleat sriov status.
type sriovStatus struct {
	Plugin     string           `json:"plugin"`
	Version    string           `json:"version"`
	Extensions int              `json:"extensions"`
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

// sriovStatusRow is one resource of a sriovStatus.
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
		Long: `Asks a device plugin on its control socket what it offers to the kubelet, which
config daemon has enabled that, and what is wrong. A plugin has that socket with
--controlled-mode. One that serves only the published proposal has no such call.

--wait repeats that until the plugin is in a state, also while the socket does not
exist yet.`,
		Example: `  sudo cleat sriov status
  sudo cleat sriov status -o json | jq .resources
  sudo cleat sriov status --wait SERVING --timeout 1m`,
		Args: exactlyNone,
	}
	states := []string{string(gate.Initializing), string(gate.Serving), string(gate.Failed), string(gate.Stopping)}
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&socket, "control-socket", sriovControlSocket, "the --control-socket of the plugin")
		e.StringVar(&wait, "wait", "", "wait until the plugin is in this state: "+strings.Join(states, ", "))
		e.DurationVar(&f.timeout, "timeout", 0, "wait no longer than this; 0 is for ever with --wait, and "+statusTimeout.String()+" without")
	})
	cobra.CheckErr(c.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		switch {
		case wait == "":
			f.timeout = cmp.Or(f.timeout, statusTimeout)
		case !slices.Contains(states, wait):
			return fmt.Errorf("--wait %q is no state of a plugin; they are %s", wait, strings.Join(states, ", "))
		}
		var s sriovStatus
		err := f.run(cmd, "asking the plugin", func(ctx context.Context, notice func(string)) error {
			again := func(err error, _ time.Duration) bool {
				return wait != "" && (errors.Is(err, errSriovState) || errors.Is(err, control.ErrNobody) || errors.Is(err, errSriovBroke))
			}
			err := retry(ctx, 250*time.Millisecond, notice, again, func(ctx context.Context) (err error) {
				s, err = askSriovStatus(ctx, socket)
				if err == nil && wait != "" && s.State != wait {
					err = fmt.Errorf("%w %s", errSriovState, strings.TrimSpace(s.State+" "+s.Error))
				}
				return err
			})
			if wait != "" && errors.Is(err, ctx.Err()) && ctx.Err() != nil {
				return fmt.Errorf("the plugin at %s is not %s in time: %w", socket, wait, err)
			}
			return explainSriov(socket, err)
		})
		return f.answer(cmd, s.table(time.Now()), s, err)
	}
	return c
}

var (
	errSriovState = errors.New("it is")               // in another state
	errSriovBroke = errors.New("it was connected to") // and the connection broke
)

func askSriovStatus(ctx context.Context, socket string) (sriovStatus, error) {
	c, err := control.Dial(ctx, socket)
	if err != nil {
		return sriovStatus{}, err
	}
	defer func() { _ = c.Close() }()
	now, err := c.Status(ctx)
	if _, answered := errors.AsType[*control.End](err); err != nil && !answered {
		err = fmt.Errorf("%w: %w", errSriovBroke, err)
	}
	if err != nil {
		return sriovStatus{}, err
	}
	v, err := c.Version(ctx)
	if end, answered := errors.AsType[*control.End](err); answered && end.Code == codes.Unimplemented {
		err = nil // an optional call
	}
	return newSriovStatus(now, v), err
}

// explainSriov says what an error means and what to do.
func explainSriov(socket string, err error) error {
	end, answered := errors.AsType[*control.End](err)
	switch {
	case errors.Is(err, control.ErrNobody):
		return fmt.Errorf("no plugin is controlled at %s: it does not run, or runs without --controlled-mode and offers its devices by itself, or has another --control-socket: %w", socket, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may ask the plugin at %s: %w", socket, err)
	case answered && end.Code == codes.Unimplemented:
		return fmt.Errorf("the plugin at %s has no GetStatus: it speaks only the published proposal, which tells its status to the config daemon alone: %w", socket, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("somebody listens at %s and does not answer; the process may hang, or be no device plugin: %w", socket, err)
	case errors.Is(err, errSriovBroke):
		return fmt.Errorf("what listens at %s may be no device plugin, or not take calls of this user: %w", socket, err)
	}
	return err
}

func newSriovStatus(s gate.Status, v control.Version) sriovStatus {
	d := sriovStatus{
		Plugin: v.Name, Version: v.Version, Extensions: v.Extensions, State: cmp.Or(string(s.State), "UNKNOWN"), Control: string(s.Holding),
		Generation: s.Generation, UID: s.UID, Hash: s.Hash, LeaseEnds: s.LeaseEnds, HoldEnds: s.HoldEnds,
		Pools: s.Pools, Devices: s.Devices, Error: s.Error, Resources: []sriovStatusRow{},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		r := s.Resources[name]
		d.Resources = append(d.Resources, sriovStatusRow{name, string(r.Phase), r.Devices, r.Offered, r.Allocating, r.Streaming, r.Error})
	}
	return d
}

// table has the plugin first, then a line for each resource.
func (s sriovStatus) table(now time.Time) cli.Table {
	t := cli.Table{Header: []string{"PLUGIN", cmp.Or(strings.TrimSpace(s.Plugin+" "+s.Version), "unknown")}}
	t.Add("State", s.State)
	t.Add("Answered for by", s.holder(now))
	t.Add("Offers", fmt.Sprintf("%s of %s", count(s.Devices, "device"), count(s.Pools, "resource")))
	t.Add("Configuration", s.Hash)
	t.AddKnown("Trouble", s.Error)
	for _, r := range s.Resources {
		text := fmt.Sprintf("%s: %d of %s", r.State, r.Offered, count(r.Devices, "device"))
		if r.Allocating > 0 {
			text += "; " + count(r.Allocating, "allocation") + " under way"
		}
		if !r.Kubelet {
			text += "; no kubelet listens"
		}
		if r.Error != "" {
			text += "; " + r.Error
		}
		t.Add(r.Name, text)
	}
	return t
}

// holder is the config daemon that has enabled the devices.
func (s sriovStatus) holder(now time.Time) string {
	who := fmt.Sprintf("generation %d", s.Generation)
	if s.UID != "" {
		who += " of node state " + s.UID
	}
	left := func(t time.Time) string { return t.Sub(now).Round(100 * time.Millisecond).String() }
	switch gate.Holding(s.Control) {
	case gate.NotControlled:
		return "nobody needs to: it is not in controlled mode"
	case gate.Waiting:
		return "nobody: it waits for a config daemon"
	case gate.Lost:
		if s.HoldEnds.IsZero() {
			return "nobody: " + who + " is lost, and its hold time runs"
		}
		return fmt.Sprintf("nobody: %s is lost, and its hold time ends in %s", who, left(s.HoldEnds))
	case gate.Live:
		if !s.LeaseEnds.IsZero() {
			who += ", with a lease that ends in " + left(s.LeaseEnds)
		}
		return "a config daemon with " + who
	}
	return "unknown"
}
