package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

// session is what the commands have in common that ask a server or this machine:
// flags that the environment can set too, a time limit, and one output format.
type session struct {
	env     *pflag.FlagSet
	output  cli.Format
	timeout time.Duration
}

// add defines the flags of a command.
func (s *session) add(to *pflag.FlagSet, define func(*pflag.FlagSet)) {
	s.output = cli.FormatTable
	s.env = pflag.NewFlagSet("environment", pflag.ContinueOnError)
	define(s.env)
	s.env.VarP(&s.output, "output", "o", "table, json or yaml")
	cli.DescribeEnv(s.env)
	to.AddFlagSet(s.env)
}

// bind reads the environment.
func (s *session) bind() error {
	if err := cli.Bind(s.env, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	if s.timeout < 0 {
		return fmt.Errorf("--timeout %s is negative; 0 waits for ever", s.timeout)
	}
	return nil
}

// run does work until the timeout or a signal. A terminal shows what takes long;
// notice shows a line for users.
func (s *session) run(cmd *cobra.Command, doing string, work func(ctx context.Context, notice func(string)) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	line := newProgress(cmd.ErrOrStderr(), doing)
	defer line.end()
	return work(ctx, line.notice)
}

// answer prints the result of a call, or returns its error.
func (s *session) answer(cmd *cobra.Command, view cli.View, document any, err error) error {
	if err != nil || view == nil {
		return err
	}
	return cli.Print(cmd.OutOrStdout(), s.output, view, document)
}

// retry repeats a call with pauses of 100 ms, doubled up to longest, until it
// succeeds, again says that a repeat cannot help, or ctx ends. The error then
// has the last answer: it says more than that the time is over.
func retry(ctx context.Context, longest time.Duration, notice func(string), again func(err error, past time.Duration) bool, call func(context.Context) error) error {
	begun, noticed := time.Now(), ""
	var last error
	for pause := min(100*time.Millisecond, longest); ; pause = min(2*pause, longest) {
		err := call(ctx)
		if err == nil {
			return nil
		}
		// gRPC can see the deadline a moment before ctx does.
		late := ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
		if !late || last == nil {
			last = err
		}
		if !late && !again(err, time.Since(begun)) {
			return err
		}
		if news := last.Error(); !late && news != noticed && time.Since(begun) > patience {
			notice(news + "; trying again")
			noticed = news
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(last, ctx.Err()) {
				return last
			}
			return fmt.Errorf("%w (gave up after %s: %w)", last, time.Since(begun).Round(100*time.Millisecond), ctx.Err())
		}
	}
}

// advise adds advice to an error, if there is any.
func advise(err error, advice string) error {
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

// noServer is the advice for an error of connecting to a server's socket.
func noServer(err error, server, start string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is " + server + " running? " + start
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens on it any more: is " + server + " running?"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not use the socket; run it as root"
	}
	return ""
}

// completion offers the words that begin with what is typed.
func completion(words []string, err error, prefix string, directive cobra.ShellCompDirective) ([]cobra.Completion, cobra.ShellCompDirective) {
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var fitting []cobra.Completion
	for _, word := range words {
		if strings.HasPrefix(word, prefix) {
			fitting = append(fitting, word)
		}
	}
	return fitting, directive
}

// completionTimeout is how long the shell waits for completions.
const completionTimeout = 2 * time.Second

// keyValues reads arguments such as readAheadKiB=512.
func keyValues(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no parameter: write key=value, as readAheadKiB=512", arg)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("parameter %s is given twice", key)
		}
		out[key] = value
	}
	return out, nil
}

// exactly is cobra.ExactArgs with an error that names the arguments.
func exactly(words ...string) cobra.PositionalArgs {
	return between(len(words), len(words), words...)
}

// atLeast is for commands that take the last argument several times.
func atLeast(words ...string) cobra.PositionalArgs {
	return between(len(words), 1<<20, words...)
}

func between(least, most int, words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%s takes %s; got %d argument(s). See %s --help", cmd.CommandPath(), strings.Join(words, " and "), len(args), cmd.CommandPath())
		}
		return nil
	}
}

func exactlyNone(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, got %q. See %s --help", cmd.CommandPath(), args, cmd.CommandPath())
	}
	return nil
}

// onlyHolds makes a command that only groups others refuse unknown words; cobra
// would print the help and succeed.
func onlyHolds(c *cobra.Command) {
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, sub := range cmd.Commands() {
			known = append(append(known, sub.Name()), sub.Aliases...)
		}
		hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
		if near := errs.Nearest(args[0], known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return fmt.Errorf("%s has no command %q; %s", cmd.CommandPath(), args[0], hint)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
