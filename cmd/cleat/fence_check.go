package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

func newFenceCheckCommand() *cobra.Command {
	var f fenceFlags
	c := &cobra.Command{
		Use:   "check [CIDR...]",
		Short: "Show what a fence would cover, without fencing",
		Long: `Shows for each enforcer which storage servers listen on the fenced ports, and the
sessions that the clients with these addresses have now: on fenced ports, on other
ports, and forwarded to other network namespaces. Without CIDRs, for the recorded
fences. Nothing is changed.

The exit code is not 0 if a fence would not be confirmed, with the reason: no
storage server listens on the fenced ports, or a client has a session that the fence
does not end. It is also not 0 if the coverage is not known: other drivers do not
report it.`,
		Example: `  cleat fence check
  cleat fence check 192.0.2.7 2001:db8::7
  cleat fence check 192.0.2.7 -o json | jq '.[].sessions'`,
		Args: cobra.ArbitraryArgs, // readBlocks validates them
	}
	f.addTo(c)
	f.addSecretTo(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var blocks []netip.Prefix
		if len(args) > 0 {
			var err error
			if blocks, err = readBlocks(nil, "", args); err != nil {
				return err
			}
		}
		var all []volume.Coverage
		err := f.runE("checking the coverage", func(ctx context.Context, s fenceService) (_ cli.View, _ any, err error) {
			all, err = s.Coverage(ctx, s.request, blocks, false)
			return coverageTable(all), all, err
		})(cmd, args)
		if err == nil {
			err = coverageProblem(all)
		}
		return err
	}
	return c
}

func coverageProblem(all []volume.Coverage) error {
	if why := coverageProblems(all); len(why) > 0 {
		return errs.Errorf(errs.Precondition, "a fence would not be confirmed: %s", strings.Join(why, "; "))
	}
	return nil
}

func coverageProblems(all []volume.Coverage) (why []string) {
	for _, c := range all {
		for _, problem := range c.Problems {
			why = append(why, c.Enforcer+": "+problem)
		}
	}
	return why
}

// coverageTable has a row for each server and session.
func coverageTable(all []volume.Coverage) cli.Table {
	t := cli.Table{Header: []string{"ENFORCER", "WHAT", "CLIENT", "SERVER", "PROCESS"}}
	for _, c := range all {
		servers := func(what string, all []volume.Listener) {
			for _, l := range all {
				t.Add(c.Enforcer, what, "", addressCell(l.Address), l.Holder)
			}
		}
		sessions := func(what string, all []volume.Session) {
			for _, s := range all {
				t.Add(c.Enforcer, what, addressCell(s.Client), addressCell(s.Server), s.Holder)
			}
		}
		servers("server", c.Servers)
		servers("server on an open port", c.Unfenced)
		servers("server over RDMA", c.Uncovered)
		sessions("session", c.Sessions)
		sessions("session on an open port", c.Unprotected)
		sessions("forwarded session", c.Forwarded)
		sessions("session without storage", c.Others)
	}
	return t
}

// addressCell is empty for an unknown address, as of the sessions of an engine.
func addressCell(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// coveredServer is a program that serves fenced ports of an enforcer.
type coveredServer struct {
	Enforcer string `json:"enforcer"`
	Ports    string `json:"ports"`
	Process  string `json:"process"`
}

// coveredServers groups the servers by their programs.
func coveredServers(all []volume.Coverage) ([]coveredServer, error) {
	found := []coveredServer{}
	for _, c := range all {
		served := map[string][]string{}
		var programs []string // in the order of their ports
		for _, l := range c.Servers {
			// As "nbd-server (process 7)".
			name, _, known := strings.Cut(l.Holder, " (process ")
			if !known {
				name = "no visible process"
			}
			if served[name] == nil {
				programs = append(programs, name)
			}
			served[name] = append(served[name], fmt.Sprint(l.Address.Port()))
		}
		for _, name := range programs {
			set, err := ports.Parse(served[name])
			if err != nil {
				return nil, err
			}
			found = append(found, coveredServer{c.Enforcer, set.String(), name})
		}
	}
	return found, nil
}

func describeCovered(all []coveredServer) string {
	words := make([]string, len(all))
	for i, one := range all {
		words[i] = fmt.Sprintf("%s: port %s (%s)", one.Enforcer, one.Ports, one.Process)
	}
	return strings.Join(words, ", ")
}

// covered is what fences of the blocks cover, for a result that is known
// without: nil from a driver of others, which does not report it. An error is
// printed as a notice.
func (s fenceService) covered(ctx context.Context, c *cobra.Command, blocks []netip.Prefix) ([]volume.Coverage, []coveredServer) {
	all, err := s.Coverage(ctx, s.request, blocks, false)
	if errors.Is(err, errs.Unsupported) {
		return nil, nil
	}
	servers, invalid := coveredServers(all)
	if err := errors.Join(err, invalid); err != nil {
		c.PrintErrf("What the fences cover is not known: %s\n", err)
	}
	return all, servers
}

// coverageLines says what a fence covers, and what it leaves to the clients.
func coverageLines(all []volume.Coverage, servers []coveredServer) cli.Text {
	var lines []string
	if len(servers) > 0 {
		lines = append(lines, "covers "+describeCovered(servers))
	}
	for _, c := range all {
		if n := len(c.Unfenced); n > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d servers listen on ports that are not fenced, one is %s at %s", c.Enforcer, n, c.Unfenced[0].Holder, c.Unfenced[0].Address))
		}
		if n := len(c.Others); n > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d sessions that serve no storage continue, one from %s to %s of %s", c.Enforcer, n, c.Others[0].Client, c.Others[0].Server, c.Others[0].Holder))
		}
	}
	lines = append(lines, coverageProblems(all)...)
	return cli.Text(strings.Join(slices.Compact(lines), "\n"))
}
