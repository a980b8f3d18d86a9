package uniquetask

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // the same facts on every machine
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func at(t *testing.T, s string) time.Time {
	t.Helper()
	i, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestRunKeys(t *testing.T) {
	for _, test := range []struct{ zone, instant, day, hour, week string }{
		// The same local time twice: one day, two hours.
		{"America/New_York", "2026-11-01T05:30:00Z", "2026-11-01", "2026-11-01T01-04:00", "2026-W44"},
		{"America/New_York", "2026-11-01T06:30:00Z", "2026-11-01", "2026-11-01T01-05:00", "2026-W44"},
		// 02:30 does not exist: the instants around it.
		{"Europe/Berlin", "2026-03-29T00:59:59Z", "2026-03-29", "2026-03-29T01+01:00", "2026-W13"},
		{"Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29", "2026-03-29T03+02:00", "2026-W13"},
		// Midnight does not exist: the day begins at 01:00.
		{"America/Santiago", "2026-09-06T03:59:59Z", "2026-09-05", "2026-09-05T23-04:00", "2026-W36"},
		{"America/Santiago", "2026-09-06T04:00:00Z", "2026-09-06", "2026-09-06T01-03:00", "2026-W36"},
		{"Africa/Cairo", "2026-04-23T22:00:00Z", "2026-04-24", "2026-04-24T01+03:00", "2026-W17"},
		// The zone decides, not the machine.
		{"UTC", "2026-11-30T03:30:00Z", "2026-11-30", "2026-11-30T03Z", "2026-W49"},
		{"America/New_York", "2026-11-30T03:30:00Z", "2026-11-29", "2026-11-29T22-05:00", "2026-W48"},
		// Hours of zones that are not whole hours from UTC.
		{"Asia/Kolkata", "2026-11-29T06:30:00Z", "2026-11-29", "2026-11-29T12+05:30", "2026-W48"},
		{"Asia/Kolkata", "2026-11-29T07:29:59Z", "2026-11-29", "2026-11-29T12+05:30", "2026-W48"},
		{"Asia/Kathmandu", "2026-11-29T06:15:00Z", "2026-11-29", "2026-11-29T12+05:45", "2026-W48"},
		// The week's year is that of its Thursday.
		{"UTC", "2027-01-03T23:59:59Z", "2027-01-03", "2027-01-03T23Z", "2026-W53"},
		{"UTC", "2027-01-04T00:00:00Z", "2027-01-04", "2027-01-04T00Z", "2027-W01"},
	} {
		z, scheduled := zone(t, test.zone), at(t, test.instant)
		// The zone that the instant is written in does not matter.
		for _, in := range []time.Time{scheduled, scheduled.In(zone(t, "Asia/Tokyo")), scheduled.In(z)} {
			if day, hour, week := RunDay(in, z), RunHour(in, z), RunWeek(in, z); day != test.day || hour != test.hour || week != test.week {
				t.Errorf("%s in %s: %q, %q, %q", test.instant, test.zone, day, hour, week)
			}
		}
	}
}

func TestDayStart(t *testing.T) {
	for _, test := range []struct {
		zone        string
		month, day  int
		begin       string
		hoursInDays []int // of this day and the next
	}{
		{"UTC", 11, 29, "2026-11-29T00:00:00Z", []int{24}},
		{"America/New_York", 11, 1, "2026-11-01T04:00:00Z", []int{25, 24}},
		{"Europe/Berlin", 3, 29, "2026-03-28T23:00:00Z", []int{23, 24}},
		{"America/Santiago", 9, 5, "2026-09-05T04:00:00Z", []int{24, 23, 24}},
		{"America/Santiago", 9, 6, "2026-09-06T04:00:00Z", []int{23, 24}},
		{"America/Santiago", 4, 4, "2026-04-04T03:00:00Z", []int{25, 24}},
		{"Africa/Cairo", 4, 24, "2026-04-23T22:00:00Z", []int{23, 24}},
		{"America/Havana", 11, 1, "2026-11-01T04:00:00Z", []int{25, 24}}, // midnight twice
		{"America/Havana", 3, 8, "2026-03-08T05:00:00Z", []int{23, 24}},
	} {
		z := zone(t, test.zone)
		begin := DayStart(2026, time.Month(test.month), test.day, z)
		if !begin.Equal(at(t, test.begin)) {
			t.Errorf("%d-%d in %s starts at %s", test.month, test.day, test.zone, begin.UTC())
		}
		for i, hours := range test.hoursInDays {
			next := DayStart(2026, time.Month(test.month), test.day+i+1, z)
			if got := next.Sub(begin); got != time.Duration(hours)*time.Hour {
				t.Errorf("day %d from %d-%d in %s has %v", i, test.month, test.day, test.zone, got)
			}
			begin = next
		}
	}
}

// Whatever the zone, a day starts where its key begins.
func TestDayStartAndKeysAgree(t *testing.T) {
	for _, name := range []string{"America/Santiago", "America/Havana", "Africa/Cairo", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "Asia/Beirut", "Atlantic/Azores"} {
		z := zone(t, name)
		for day := 1; day <= 366; day++ {
			begin := DayStart(2026, 1, day, z)
			want := time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
			if got := RunDay(begin, z); got != want {
				t.Errorf("%s: %s starts in %s", name, want, got)
			}
			if got := RunDay(begin.Add(-time.Nanosecond), z); got >= want {
				t.Errorf("%s: %s had started before", name, want)
			}
		}
	}
}

// The twin: time.Date for midnight and Truncate split days and hours.
func TestKeysOfHandMiss(t *testing.T) {
	z := zone(t, "America/Santiago")
	if got := RunDay(time.Date(2026, 9, 6, 0, 0, 0, 0, z), z); got != "2026-09-05" {
		t.Errorf("midnight by time.Date lies in %s: DayStart would not be needed", got)
	}
	k := zone(t, "Asia/Kolkata")
	a, b := at(t, "2026-11-29T06:31:00Z"), at(t, "2026-11-29T07:29:00Z") // 12:01 and 12:59
	if RunHour(a, k) != RunHour(b, k) || a.Truncate(time.Hour).Equal(b.Truncate(time.Hour)) {
		t.Error("Truncate would have done")
	}
}

func TestParseHistory(t *testing.T) {
	list := parseHistory("cut off\t1\n1\t1\tfailed\t1000000\t2000000\th\ta\tb\n2\t2\tlost\t3000000\t0\t\t")
	want := []Attempt{
		{Token: 1, Attempt: 1, State: Failed, Holder: "h", Started: time.Unix(1, 0), Ended: time.Unix(2, 0), Err: "a\tb"},
		{Token: 2, Attempt: 2, State: Lost, Started: time.Unix(3, 0)},
	}
	if !slices.Equal(list, want) {
		t.Errorf("%+v", list)
	}
	if list := parseHistory(""); list != nil {
		t.Errorf("%+v", list)
	}
}

func TestRest(t *testing.T) {
	c := Config{Backoff: time.Second, MaxBackoff: 10 * time.Second}
	var got []time.Duration
	for attempt := range 7 {
		got = append(got, c.rest(attempt)/time.Second)
	}
	if fmt.Sprint(got) != fmt.Sprint([]time.Duration{1, 1, 2, 4, 8, 10, 10}) {
		t.Error(got)
	}
	if rest := (Config{}).rest(5); rest != 0 {
		t.Error(rest)
	}
	// Neither the doubling nor its limit may overflow.
	const never = time.Duration(math.MaxInt64)
	for attempt, want := range map[int]time.Duration{30: 1 << 29 * time.Second, 40: never, 100: never, math.MaxInt: never} {
		if rest := (Config{Backoff: time.Second, MaxBackoff: never}).rest(attempt); rest != want {
			t.Errorf("attempt %d rests for %v, want %v", attempt, rest, want)
		}
	}
	for _, most := range []time.Duration{2, 3, never} {
		if rest := (Config{Backoff: most, MaxBackoff: most}).rest(3); rest != most {
			t.Errorf("rests for %v, want %v", rest, most)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"a\nb\tc\x00": "a b c", "äöü": "äö", "\xff": "\uFFFD"} {
		if got := oneLine(in, 5); got != want {
			t.Errorf("%q became %q", in, got)
		}
	}
}

// A failure that ended while this claim was on its way is no rest.
func TestRefusedWithoutRest(t *testing.T) {
	failed := row{state: string(Failed), attempt: 1, ended: 20, free: 20, now: 10}
	if e := (Config{}).refused("r", failed); e != nil {
		t.Error(e)
	}
	failed.free = 30
	if e := (Config{}).refused("r", failed); e == nil || e.Kind != ErrFailed || e.Holder == nil {
		t.Error(e)
	}
}
