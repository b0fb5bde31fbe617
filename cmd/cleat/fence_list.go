package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cli"
)

// fencedBlock is an element of cleat fence list. The CIDR is as the driver wrote it.
type fencedBlock struct {
	CIDR string `json:"cidr"`
}

func newFenceListCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the fenced blocks (ListClusterFence)",
		Long: `Lists the fenced blocks, as the driver reports them: cleat's those that are
enforced now. With --parameter only those of these parameters. Sessions for which
a fence waits are listed on standard error, with the process that keeps them open.`,
		Example: `  cleat fence list
  cleat fence list -o json | jq -r '.[].cidr'`,
		Args: exactlyNone,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var blocks, ending []string
		err := f.ask(cmd, "asking what is fenced", func(ctx context.Context, c *client.Client, r client.Request) (err error) {
			blocks, ending, err = c.ListAll(ctx, r)
			return err
		})
		if err == nil && len(ending) > 0 {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "Not fenced yet, and not listed:\n  %s\nEnd or restart such a process, or close the descriptor in it; the fence then goes on by itself (docs/fencing.md).\n", strings.Join(ending, "\n  "))
		}
		slices.SortFunc(blocks, byBlock)
		t, all := cli.Table{Header: []string{"CIDR"}}, []fencedBlock{}
		for _, block := range blocks {
			t.Add(block)
			all = append(all, fencedBlock{block})
		}
		return f.answer(cmd, t, all, err)
	}
	return c
}

// byBlock orders blocks; texts that are no blocks follow.
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

func newFenceClientsCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:   "clients",
		Short: "List the clients of the storage and their addresses (GetFenceClients)",
		Long: `Lists the clients of the storage that the driver knows, each with the addresses to
fence. A driver on a node lists its own node: ask there, before it fails.`,
		Example: `  cleat fence clients --endpoint unix:///run/cleat/addons/addons.sock
  cleat fence clients -o json | jq -r '.[].addresses[]'`,
		Args: exactlyNone,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var all []client.FenceClient
		err := f.ask(cmd, "asking for clients", func(ctx context.Context, c *client.Client, r client.Request) (err error) {
			all, err = c.Clients(ctx, r)
			return err
		})
		t := cli.Table{Header: []string{"CLIENT", "ADDRESSES"}}
		for _, one := range all {
			t.Add(one.ID, one.Addresses)
		}
		return f.answer(cmd, t, all, err)
	}
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
		Short:   "Show the driver's identity and capabilities",
		Example: `  cleat fence driver --endpoint unix:///csi/csi-addons.sock`,
		Args:    exactlyNone,
	}
	f.addTo(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var d fenceDriver
		err := f.ask(cmd, "asking the driver", func(ctx context.Context, c *client.Client, _ client.Request) (err error) {
			if d.Identity, err = c.Identity(ctx); err != nil {
				return err
			}
			if d.Capabilities, err = c.Capabilities(ctx); err != nil {
				return err
			}
			d.Ready, err = c.Probe(ctx)
			return err
		})
		t := cli.Table{Header: []string{"DRIVER", d.Name}}
		t.Add("Version", d.Version)
		t.Add("Ready", d.Ready)
		t.Add("Fences", d.Capabilities.Fence)
		t.Add("Tells its clients", d.Capabilities.Clients)
		t.Add("Announces", d.Capabilities.All)
		return f.answer(cmd, t, d, err)
	}
	return c
}
