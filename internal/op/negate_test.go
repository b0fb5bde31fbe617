package op

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleatproject/cleat/errs"
)

func TestNegatingCancelsAndWaitsForTheRollBack(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		rolledBack := false
		create := ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrNegated) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
			time.Sleep(10 * time.Second) // longer than others would wait
			rolledBack = true
			return "", errors.New("signal: killed")
		})
		synctest.Wait()
		waiting := ask(t.Context(), o, Request{Keys: []string{"v"}, What: "Expand"}, sleeping(0, "expanded"))
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "d", Negates: true, What: "Delete"}, func(context.Context) (string, error) {
			if !rolledBack {
				t.Error("runs before the roll-back was done")
			}
			return "deleted", nil
		})
		synctest.Wait()
		// The same Create again must not join the cancelled one.
		again := ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}, sleeping(0, "made anew"))
		want(t, <-remove, "deleted", nil)
		got := <-create
		want(t, got, "", ErrNegated)
		want(t, got, "", errs.Busy)
		want(t, <-waiting, "", errs.Busy)
		want(t, <-again, "", errs.Busy)
	})
}

func TestNegatingOvertakesThoseThatWait(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		stubborn := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) {
			time.Sleep(2 * time.Second)
			return "made all the same", nil
		})
		synctest.Wait()
		var order []string
		note := func(name string) func(context.Context) (string, error) {
			return func(context.Context) (string, error) { order = append(order, name); return name, nil }
		}
		expand := ask(t.Context(), o, Request{Keys: []string{"v"}}, note("expand"))
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Negates: true}, note("delete"))
		want(t, <-stubborn, "made all the same", nil)
		want(t, <-remove, "delete", nil)
		want(t, <-expand, "expand", nil)
		if !slices.Equal(order, []string{"delete", "expand"}) {
			t.Errorf("order: %v", order)
		}
	})
}

func TestNegatingLeavesNegatingAlone(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		first := ask(t.Context(), o, Request{Keys: []string{"v"}, Negates: true}, sleeping(5*time.Second, "unstaged"))
		synctest.Wait()
		start := time.Now()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}, Negates: true}, sleeping(0, "")), "", errs.Busy)
		if time.Since(start) != 3*time.Second {
			t.Errorf("waited %s", time.Since(start))
		}
		want(t, <-first, "unstaged", nil)
	})
}

func TestNegatingIsBoundedByItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		stuck := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) {
			time.Sleep(time.Hour)
			return "late", nil
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want(t, <-ask(ctx, o, Request{Keys: []string{"v"}, Negates: true}, sleeping(0, "")), "", context.DeadlineExceeded)
		want(t, <-stuck, "late", nil)
	})
}

func TestAnswerWithAKindSurvivesNegation(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		create := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", errs.Errorf(errs.Exists, "the name is taken")
		})
		synctest.Wait()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}, Negates: true}, sleeping(0, "ok")), "ok", nil)
		want(t, <-create, "", errs.Exists)
	})
}

func TestNegatedOperationIsNotJoined(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		r := Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}
		create := ask(t.Context(), o, r, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return "", ctx.Err()
		})
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Negates: true}, sleeping(0, "deleted"))
		synctest.Wait()
		again := ask(t.Context(), o, r, sleeping(0, "made anew"))
		want(t, <-create, "", ErrNegated)
		want(t, <-remove, "deleted", nil)
		want(t, <-again, "made anew", nil)
	})
}
