/* RMSprop (spec/rmsprop.md) for `refopt check 'cmd:./rmsprop' --optimizer rmsprop`, by
 * docs/protocol.md.
 *
 *     cc -O2 -ffp-contract=off rmsprop.c -o rmsprop -lm
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1 << 20, ARRAYS = 8, ELEMENTS = 4096 };

typedef struct {
    int size; /* elements */
    double param[ELEMENTS], v[ELEMENTS], a[ELEMENTS], buffer[ELEMENTS];
} Array;

static struct { double lr, rho, momentum, epsilon; } h;
static int arrays, wide, centered; /* wide: float64, else float32 */
static Array array[ARRAYS];
static char line[LINE];

/* The number after a name, as it was where the line lacks it. */
static double number(const char *name, double before) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr(line, key);
    if (!found) return before;
    found += strlen(key);
    return strtod(found + (*found == '"'), NULL);
}

static void read_hyper(void) {
    h.lr = number("lr", h.lr);
    h.rho = number("rho", h.rho);
    h.momentum = number("momentum", h.momentum);
    h.epsilon = number("epsilon", h.epsilon);
}

/* Every number is kept in a double; one of float32 is rounded where it is stored. */
static double stored(double x) { return wide ? x : (float)x; }

/* The elements of the next string of bits, and how many there are; -1 for null. */
static int decode(const char **at, double *x) {
    *at += strcspn(*at, "\"n");
    if (**at == 'n') return *at += 4, -1;
    int digits = wide ? 16 : 8, n = 0;
    for (++*at; **at != '"'; *at += digits, n++) {
        char text[17] = {0};
        memcpy(text, *at, digits);
        uint64_t bits = strtoull(text, NULL, 16);
        uint32_t half = (uint32_t)bits;
        float narrow;
        if (n == ELEMENTS) exit(fprintf(stderr, "more than %d elements\n", ELEMENTS));
        memcpy(&narrow, &half, sizeof half);
        memcpy(&x[n], &bits, sizeof bits);
        if (!wide) x[n] = narrow;
    }
    return ++*at, n;
}

static void encode(const char *name, size_t offset) {
    printf(", \"%s\": [", name);
    for (int i = 0; i < arrays; i++) {
        const double *x = (const double *)((const char *)&array[i] + offset);
        printf(i ? ", \"" : "\"");
        for (int j = 0; j < array[i].size; j++) {
            uint64_t bits;
            uint32_t half;
            float narrow = (float)x[j];
            memcpy(&bits, &x[j], sizeof bits);
            memcpy(&half, &narrow, sizeof half);
            if (wide) printf("%016" PRIx64, bits);
            else printf("%08" PRIx32, half);
        }
        printf("\"");
    }
    printf("]");
}

static void step(Array *x, const double *grad) {
    for (int j = 0; j < x->size; j++) {
        double g = grad[j];
        x->v[j] = stored(h.rho * x->v[j] + (1 - h.rho) * g * g);
        double variance = x->v[j];
        if (centered) {
            x->a[j] = stored(h.rho * x->a[j] + (1 - h.rho) * g);
            variance -= x->a[j] * x->a[j];
        }
        double change = g / (sqrt(variance) + h.epsilon);
        if (h.momentum > 0) change = x->buffer[j] = stored(h.momentum * x->buffer[j] + change);
        x->param[j] = stored(x->param[j] - h.lr * change);
    }
}

static void start(void) {
    wide = strstr(line, "\"dtype\": \"float64\"") != NULL;
    read_hyper();
    centered = (int)number("centered", 0);
    const char *at = strstr(line, "\"params\": [") + strlen("\"params\": [");
    for (arrays = 0; *at != ']' && arrays < ARRAYS; arrays++, at += strspn(at, ", ")) {
        array[arrays] = (Array){0};
        array[arrays].size = decode(&at, array[arrays].param);
    }
}

int main(void) {
    while (fgets(line, LINE, stdin)) {
        printf("{\"seq\": %d", (int)number("seq", 0));
        if (strstr(line, "\"op\": \"hello\"")) {
            const char *suite = strstr(line, "\"suite\": \"") + strlen("\"suite\": \"");
            printf(", \"rop\": 1, \"optimizer\": \"rmsprop\", \"suite\": \"%.*s\"",
                   (int)strcspn(suite, "\""), suite);
            printf(", \"name\": \"rmsprop.c\", \"version\": \"1\", \"takes\": [\"float32\", "
                   "\"float64\", \"several\", \"missing\", \"lr\", \"rho\", \"momentum\", "
                   "\"epsilon\", \"centered\"]");
        } else if (strstr(line, "\"op\": \"case\"")) {
            start();
        } else if (strstr(line, "\"op\": \"step\"")) {
            const char *at = strstr(line, "\"grads\": [") + strlen("\"grads\": [");
            double grad[ELEMENTS];
            read_hyper();
            for (int i = 0; i < arrays; i++)
                if (decode(&at, grad) >= 0) step(&array[i], grad);
            encode("param", offsetof(Array, param));
            encode("v", offsetof(Array, v));
            if (centered) encode("a", offsetof(Array, a));
            if (h.momentum > 0) encode("buffer", offsetof(Array, buffer));
        }
        puts("}");
        fflush(stdout);
    }
}
