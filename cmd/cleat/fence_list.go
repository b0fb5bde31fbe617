package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cli"
)

// fencedBlock is a line of cleat fence list. The CIDR is as the driver wrote it.
type fencedBlock struct {
	CIDR string `json:"cidr"`
}

func newFenceListCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what is fenced",
		Long: `Lists the blocks that are fenced, as the driver reports them: of cleat those that
hold now. With --parameter only those of that parameter set. Sessions for which a
fence waits are named on standard error, with the process that keeps them open.`,
		Example: `  cleat fence list
  cleat fence list -o json | jq -r '.[].cidr'`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "asking what is fenced", func(ctx context.Context, s *fenceService) error {
				var texts, ending []string
				err := s.until(ctx, func(ctx context.Context) (err error) {
					texts, ending, err = s.ListAll(ctx, s.request)
					return err
				})
				if err != nil {
					return err
				}
				if err := printEnding(cmd.ErrOrStderr(), ending); err != nil {
					return err
				}
				slices.SortFunc(texts, byBlock)
				table, all := cli.Table{Header: []string{"CIDR"}}, []fencedBlock{}
				for _, text := range texts {
					table.Rows = append(table.Rows, []string{text})
					all = append(all, fencedBlock{text})
				}
				return f.print(cmd, table, all)
			})
		},
	}
	f.add(c)
	f.addRequest(c)
	return c
}

// printEnding says what fences wait for, and what an operator can do.
func printEnding(w io.Writer, ending []string) error {
	if len(ending) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "Not fenced yet, and not listed:\n  %s\nEnd or restart such a process, or close the descriptor in it; the fence then goes on by itself (docs/fencing.md).\n", strings.Join(ending, "\n  "))
	return err
}

// byBlock puts blocks in order, and behind them what is none to us.
func byBlock(a, b string) int {
	x, errX := request.Block(a)
	y, errY := request.Block(b)
	switch {
	case errX == nil && errY == nil:
		return netip.Prefix.Compare(x, y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return strings.Compare(a, b)
}

// fenced completes an argument of the shell with what is fenced.
func (f *fenceAsk) fenced(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var fitting []cobra.Completion
	err := f.run(cmd, "asking what is fenced", func(ctx context.Context, s *fenceService) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		all, err := s.List(ctx, s.request)
		for _, text := range all {
			if strings.HasPrefix(text, prefix) {
				fitting = append(fitting, text)
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}

func newFenceClientsCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:   "clients",
		Short: "List which clients of the storage a driver knows, with their addresses",
		Long: `Lists the clients of the storage that the driver knows, each with the addresses to
fence. A driver on a node tells of its own node: ask there, before it fails.`,
		Example: `  cleat fence clients --endpoint unix:///run/cleat/addons/addons.sock
  cleat fence clients -o json | jq -r '.[].addresses[]'`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "asking for clients", func(ctx context.Context, s *fenceService) error {
				var all []client.FenceClient
				err := s.until(ctx, func(ctx context.Context) (err error) {
					all, err = s.Clients(ctx, s.request)
					return err
				})
				if err != nil {
					return err
				}
				table := cli.Table{Header: []string{"CLIENT", "ADDRESSES"}}
				for _, one := range all {
					table.Rows = append(table.Rows, []string{one.ID, strings.Join(one.Addresses, ", ")})
				}
				return f.print(cmd, table, all)
			})
		},
	}
	f.add(c)
	f.addRequest(c)
	return c
}

// fenceDriver is the document of cleat fence driver.
type fenceDriver struct {
	client.Identity
	Ready        bool                `json:"ready"`
	Capabilities client.Capabilities `json:"capabilities"`
}

func newFenceDriverCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:     "driver",
		Short:   "Show which driver answers and what it can do",
		Example: `  cleat fence driver --endpoint unix:///csi/csi-addons.sock`,
		Args:    exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "asking the driver", func(ctx context.Context, s *fenceService) error {
				var d fenceDriver
				err := s.until(ctx, func(ctx context.Context) (err error) {
					if d.Identity, err = s.Identity(ctx); err != nil {
						return err
					}
					if d.Capabilities, err = s.Capabilities(ctx); err != nil {
						return err
					}
					d.Ready, err = s.Probe(ctx)
					return err
				})
				if err != nil {
					return err
				}
				return f.print(cmd, cli.Table{Header: []string{"DRIVER", d.Name}, Rows: [][]string{
					{"Version", dash(d.Version)},
					{"Ready", yes(d.Ready)},
					{"Fences", yes(d.Capabilities.Fence)},
					{"Tells its clients", yes(d.Capabilities.Clients)},
					{"Announces", dash(strings.Join(d.Capabilities.All, ", "))},
				}}, d)
			})
		},
	}
	f.add(c)
	return c
}
