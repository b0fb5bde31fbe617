package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/cli"
)

// session is common to client commands: flags that the environment can also
// set, a timeout, and the output format.
type session struct {
	env     *pflag.FlagSet
	output  cli.Format
	timeout time.Duration
	// starting limits the wait for a server that does not run yet; see
	// untilServed. Set by bind.
	starting time.Duration
}

// startTime is how long a command waits for a server that starts, if --timeout
// is not set.
const startTime = 15 * time.Second

const noLimit = 100 * 365 * 24 * time.Hour

// startUsage is the part of the help of --timeout about startTime.
const startUsage = "If not set, a server that does not run fails after 15 s"

const outputUsage = "output format: table, json or yaml"

func (s *session) add(to *pflag.FlagSet, define func(*pflag.FlagSet)) {
	s.output = cli.FormatTable
	s.env = pflag.NewFlagSet("environment", pflag.ContinueOnError)
	define(s.env)
	s.env.VarP(&s.output, "output", "o", outputUsage)
	cli.DescribeEnv(s.env)
	to.AddFlagSet(s.env)
}

func (s *session) bind() error {
	if err := cli.Bind(s.env, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	if s.timeout < 0 {
		return fmt.Errorf("--timeout %s is negative: use 0 for no limit", s.timeout)
	}
	s.starting = startTime
	if s.env.Changed("timeout") {
		s.starting = noLimit // the context ends it
	}
	return nil
}

// untilServed repeats a call while no process serves its socket, because the
// server starts: up to --timeout, or startTime if it is not set. more (optional)
// selects further errors of a server that starts.
func (s *session) untilServed(ctx context.Context, notice func(string), more func(error) bool, call func(context.Context) error) error {
	again := func(err error, past time.Duration) bool {
		return past < s.starting && (isUnserved(err) || more != nil && more(err))
	}
	return retry(ctx, time.Second, notice, again, call)
}

// isUnserved: no process accepts connections on the socket.
func isUnserved(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// run calls work until the timeout or a signal. A terminal shows its progress;
// notice prints a line.
func (s *session) run(cmd *cobra.Command, doing string, work func(ctx context.Context, notice func(string)) error) error {
	signaled, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx := signaled
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	line := newProgress(cmd.ErrOrStderr(), doing)
	defer line.end()
	err := work(ctx, line.notice)
	if err != nil && signaled.Err() != nil && cmd.Context().Err() == nil {
		return errors.New("interrupted by a signal; the server can have completed the call: repeat the command to find out")
	}
	return err
}

func (s *session) printResult(cmd *cobra.Command, view cli.View, document any, err error) error {
	if err != nil || view == nil {
		return err
	}
	return cli.Print(cmd.OutOrStdout(), s.output, view, document)
}

// retry repeats a call with exponential backoff from 100 ms to longest, until
// it succeeds, again returns false, or ctx ends. Its error is the call's last
// one, which says more than the timeout.
func retry(ctx context.Context, longest time.Duration, notice func(string), again func(err error, past time.Duration) bool, call func(context.Context) error) error {
	begun, noticed := time.Now(), ""
	var last error
	for pause := (backoff.Backoff{First: 100 * time.Millisecond, Most: longest}); ; {
		err := call(ctx)
		if err == nil {
			return nil
		}
		// gRPC can detect the deadline slightly before ctx.
		deadline, limited := ctx.Deadline()
		late := ctx.Err() != nil || limited && !time.Now().Before(deadline)
		if !late || last == nil {
			last = err
		}
		if !late && !again(err, time.Since(begun)) {
			return err
		}
		if news := last.Error(); !late && news != noticed && time.Since(begun) > progressDelay {
			notice(news + "; retrying")
			noticed = news
		}
		if pause.Wait(ctx) != nil {
			if errors.Is(last, ctx.Err()) {
				return last
			}
			return fmt.Errorf("%w (gave up after %s: %w)", last, time.Since(begun).Round(100*time.Millisecond), ctx.Err())
		}
	}
}

func advise(err error, advice string) error {
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

func noServer(err error, server, start string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is " + server + " running? " + start
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the socket is stale: is " + server + " running?"
	case errors.Is(err, fs.ErrPermission):
		return "this user has no permission to use the socket; run the command as root"
	}
	return ""
}

// callServer returns a RunE: call returns the result as text and as document.
func callServer[C io.Closer](s *session, bind func() error, dial func(context.Context, func(string)) (C, error), doing string, call func(context.Context, C, []string) (cli.View, any, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := bind(); err != nil {
			return err
		}
		return s.run(cmd, doing, func(ctx context.Context, notice func(string)) error {
			c, err := dial(ctx, notice)
			if err != nil {
				return err
			}
			view, document, err := call(ctx, c, args)
			return errors.Join(s.printResult(cmd, view, document, err), c.Close())
		})
	}
}

func complete(directive cobra.ShellCompDirective, list func(cmd *cobra.Command, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		cmd.SetContext(ctx)
		words, err := list(cmd, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(words, func(word string) bool { return !strings.HasPrefix(word, prefix) }), directive
	}
}

// keyValues is the value of a repeatable flag, -p readAheadKiB=512.
type keyValues map[string]string

func (m *keyValues) String() string { return "" }

func (m *keyValues) Type() string { return "key=value" }

func (m *keyValues) Set(arg string) error {
	key, value, ok := strings.Cut(arg, "=")
	if !ok || key == "" {
		return fmt.Errorf("parameter %q is not key=value, for example readAheadKiB=512", arg)
	}
	if _, twice := (*m)[key]; twice {
		return fmt.Errorf("parameter %s is set twice", key)
	}
	if *m == nil {
		*m = keyValues{}
	}
	(*m)[key] = value
	return nil
}

func addParameters(c *cobra.Command, m *keyValues, usage string) {
	c.Flags().VarP(m, "parameter", "p", "driver parameter, "+usage)
}

// argsOf validates arguments against a use line: VOLUME is required, [PATH] is
// optional, CIDR... can be repeated.
func argsOf(use string) cobra.PositionalArgs {
	words := strings.Fields(use)[1:]
	if len(words) == 0 {
		return noArgs
	}
	least, most := 0, len(words)
	for _, word := range words {
		if !strings.HasPrefix(word, "[") {
			least++
		}
		if strings.Contains(word, "...") {
			most = math.MaxInt
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%s expects %s, got %d argument(s); see %s --help", cmd.CommandPath(), strings.Join(words, " "), len(args), cmd.CommandPath())
		}
		return nil
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s expects no arguments, got %q; see %s --help", cmd.CommandPath(), args, cmd.CommandPath())
	}
	return nil
}

// setUpGroup completes a command group. It refuses unknown words, for which
// cobra would print the help and succeed. Subcommands validate their arguments
// against their use line; lists get the alias ls.
func setUpGroup(c *cobra.Command) {
	var known []string
	for _, sub := range c.Commands() {
		if sub.Name() == "list" {
			sub.Aliases = []string{"ls"}
		}
		if sub.Args == nil {
			sub.Args = argsOf(sub.Use)
		}
		known = append(append(known, sub.Name()), sub.Aliases...)
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
		if near := errs.Nearest(args[0], known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fmt.Errorf("%s has no command %q; %s", cmd.CommandPath(), args[0], hint)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// progress shows on a terminal what a command is doing; elsewhere it writes
// only notices. Write errors are ignored: the command continues without a
// terminal.
type progress struct {
	out   io.Writer
	doing string
	begun time.Time
	stop  func()

	mu    sync.Mutex
	drawn bool
}

// progressDelay exceeds the duration of most commands.
const progressDelay = 600 * time.Millisecond

func newProgress(out io.Writer, doing string) *progress {
	p := &progress{out: out, doing: doing, begun: time.Now(), stop: func() {}}
	if doing != "" && cli.IsTerminal(out) {
		quit, ended := make(chan struct{}), make(chan struct{})
		go p.tick(quit, ended)
		p.stop = sync.OnceFunc(func() { close(quit); <-ended })
	}
	return p
}

func (p *progress) tick(quit, ended chan struct{}) {
	defer close(ended)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
			p.draw()
		}
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if past := time.Since(p.begun); past > progressDelay {
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s … %.1f s", p.doing, past.Seconds())
		p.drawn = true
	}
}

func (p *progress) notice(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	_, _ = fmt.Fprintln(p.out, "cleat:", line)
}

func (p *progress) erase() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.drawn = false
}

// end can be called twice.
func (p *progress) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}
